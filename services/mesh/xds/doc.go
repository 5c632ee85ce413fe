// Package xds generates the xDS resources of a world for classes of proxies.
//
// It is pure: the same PushContext and class give the same bytes in the same
// order. It gets the class of a proxy, never the proxy, so nothing can leak
// between proxies; and it never imports envoy/service.
//
// A class has parts. Each part makes pieces; pieces that clients would reject
// are left out. The pieces of one name are a resource, and all resources of a
// type are a Set. A Catalog makes the Sets of many classes and repeats only what
// a change requires; tests compare them with Sets that are made from nothing.
package xds
