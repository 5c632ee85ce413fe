// Package simulate answers which cluster, and which endpoints, a call would
// reach: it walks the listeners, routes, clusters and endpoints that a proxy is
// served the way Envoy does, without an Envoy.
//
// It knows what mesh/xds generates and what raw resources commonly hold;
// of what it does not know it says so in Outcome.Notes. It is pure.
package simulate
