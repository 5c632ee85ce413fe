// Package content keeps the encoded resources of each class of proxies in use,
// at the served version and some before it.
//
// A resource is encoded once and shared by all classes and versions that have
// it. A change makes again only what depends on it. A new version is built
// aside and swapped in, so clients can read the old one meanwhile; then those
// clients are woken that watch what it changed. All versions on the wire are
// hashes of content, so they are equal on every frontend and after every
// restart.
package content
