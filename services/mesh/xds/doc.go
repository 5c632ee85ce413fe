// Package xds generates the xDS resources of a world for classes of proxies.
//
// It is pure: the same PushContext and class give the same bytes in the same
// order. It knows the class of a proxy, never the proxy, so nothing can leak
// between proxies; and it never imports envoy/service.
//
// Parts returns the parts of a class. Each part makes pieces; pieces that
// clients would reject are left out. The pieces of one name are a resource, and
// all resources of a type are a Set. Generate does that from nothing and is the
// definition. A Catalog comes to the same Sets for many classes and repeats
// only what a change requires.
package xds
