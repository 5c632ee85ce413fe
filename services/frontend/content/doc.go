// Package content keeps what is served: for each class of proxies in use the
// encoded resources, at the version served now and at some before it.
//
// A resource is encoded once per content and shared by all classes and
// versions that have it. A change makes again only what depends on it, while
// what was served before can be read: a new version is built aside and then
// takes its place. Clients are told of it that watch what it changed. All
// identifiers are hashes of content, so they are equal on every frontend and
// after every restart.
package content
