// Package kubernetes tests the programs in bin/ with two Kubernetes clusters: how
// an object that is written to an API server changes the requests that flow
// through real Envoys, and how requests fare when an API server, a watcher or
// both die. All tests share one mesh, one after the other.
package kubernetes
