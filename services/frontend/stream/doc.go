// Package stream is the state machine of one ADS stream, state of the world:
// what to send next, given what was requested, what is served, and the time.
// It knows no gRPC and has no clock; one goroutine uses a Stream.
//
// A Stream compares what the client should have with what it was sent, so a
// slow client gets the latest state and never a queue. The order of types is
// make before break: clusters, their endpoints, listeners, routes; clusters
// that are gone stay until nothing refers to them any more. Rules that come
// from what a real Envoy does are marked with their number in the project's
// list of such facts: E1 to E45, and G1 to G15 for gRPC clients.
package stream
