// Package kubernetes tests the programs in bin/ with two Kubernetes clusters:
// what an object that is written to an API server does to the requests that
// flow through real Envoys, and what they feel when an API server, a watcher or
// both die. One mesh serves all tests, one after the other.
package kubernetes
