// Package gate generates, before a version is published, the resources that every
// frontend will generate from it. It reports the resources that Envoy or a gRPC
// client would refuse; builder and frontends leave them out alike.
//
// It is pure.
package gate
