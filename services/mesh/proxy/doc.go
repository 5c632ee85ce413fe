// Package proxy describes a connected client: what it says of itself in the node
// of its first request, read the way Istio writes it.
//
// It is pure.
package proxy
