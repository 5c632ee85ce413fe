// Package xds turns the world into Envoy's words: what a class of proxies is
// served.
//
// It is pure: the same PushContext and class give the same bytes in the same
// order. It knows the class of a proxy, never the proxy, so nothing can leak
// from one to another; and it never imports envoy/service.
//
// Parts says what the resources of a class are made of. Each part makes
// pieces; what clients would refuse of them is left out; pieces of one name
// are a resource, and all resources of a type are a Set. Generate does that
// from nothing and is what counts. A Catalog comes to the same for many
// classes, and does again only what a change requires.
package xds
