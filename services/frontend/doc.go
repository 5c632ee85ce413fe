// Package frontend serves xDS to Envoys and gRPC clients. It follows the
// published versions of a mesh (replica), makes the resources of each class of
// proxies (content), and runs the gRPC server with one state machine for each
// stream (stream).
//
// It uses neither the log nor the builders. If everything else is dead, it serves
// from its local replica.
package frontend
