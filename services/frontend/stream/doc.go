// Package stream is the state machine of one stream, state of the world or
// delta, ADS or for one type: what to send next, given what was requested, what
// is served, and the time. It knows no gRPC and has no clock. A Stream is used
// by one goroutine at a time, under a lock of its owner's:
//
//	s := stream.New(cfg, view)    // with the node of the first request
//	s.Request(now, r)             // whatever is received
//	s.Update(now, view)           // whatever is served from now on
//	for {                         // after each of these, and at s.Wake()
//		r, ok := s.Next(now)      // to be sent, one after the other
//	}
//	s.Status()                    // when somebody asks
//
// A Stream compares what the client should have with what it was sent, so a
// slow client gets the latest state and never a queue. The order of types is
// make before break: clusters, their endpoints, listeners, routes; clusters
// that are gone stay until nothing refers to them any more. Rules that come
// from what a real Envoy does are marked with their row in ../FACTS.md: E1 to
// E45, and G1 to G15 for gRPC clients.
package stream
