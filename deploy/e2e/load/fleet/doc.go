// Package fleet plays many proxies at once, each a gRPC connection of its own
// with one ADS stream, at as little cost as grpc-go allows: they ask for CDS,
// EDS, LDS and RDS in that order, with all names, and acknowledge everything,
// but decode no resource. What they say is encoded once and shared.
package fleet
