// Package proxy describes a connected client. It reads the properties that the
// client gives in the node of its first request, in Istio's format.
//
// It is pure.
package proxy
