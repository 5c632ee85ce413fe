// Package xds turns the world into Envoy's words: what a class of proxies is
// served.
//
// It is pure: the same PushContext and class give the same bytes in the same
// order. It knows the class of a proxy, never the proxy, so nothing can leak
// from one to another; and it never imports envoy/service.
package xds
