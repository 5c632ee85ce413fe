// Package fleet plays many proxies at once, each on its own gRPC connection with
// one ADS stream, at as little cost as grpc-go allows. Proxies ask for CDS, EDS,
// LDS and RDS in that order, with all names, and acknowledge every response, but
// decode no resource. Their requests are encoded once and shared.
package fleet
