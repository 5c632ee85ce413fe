// Package simulate finds the clusters and endpoints that a call would reach. It
// walks a proxy's listeners, routes, clusters and endpoints as Envoy does, without
// an Envoy.
//
// It knows the features that mesh/xds generates and that raw resources commonly
// use. Outcome.Notes lists the features of a call that it does not know. It is
// pure.
package simulate
