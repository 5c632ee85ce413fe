// Package content keeps what is served: for each class of proxies and type the
// encoded resources, at the version served now and at some before it.
//
// A resource is encoded once per content and shared by all classes and
// versions that have it. A change regenerates only the classes that have read
// what it changed. All identifiers are hashes of content, so they are equal on
// every frontend and after every restart.
package content
