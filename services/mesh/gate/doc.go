// Package gate builds, before a version is published, what every frontend will
// build from it: resources that an Envoy or a gRPC client would refuse are found
// here, reported, and left out by builder and frontends alike.
//
// It is pure.
package gate
