// Package stream is the state machine of one xDS stream, state of the world
// (SotW) or delta, ADS or for a single type. It decides what to send next from
// the client's requests, the served view and the time. It knows no gRPC and has
// no clock. One goroutine at a time uses a Stream; its owner locks it:
//
//	s := stream.New(cfg, view)    // with the node of the first request
//	s.Request(now, r)             // each request that is received
//	s.Update(now, view)           // each new view that is served
//	for {                         // after each of these, and at s.Wake()
//		r, ok := s.Next(now)      // send the responses one after the other
//	}
//	s.Status()                    // for reports
//
// A Stream compares what the client should have with what it was sent, so a
// slow client gets the latest state and never a queue. The order is make before
// break: clusters, their endpoints, listeners, routes. A removed cluster
// lingers until nothing refers to it. IDs such as E16 (Envoy) and G8 (gRPC)
// name rows of ../FACTS.md, the facts about real clients.
//
// Where to look:
//
//	stream.go      requests, views, order of types, timers
//	watch.go       one type's subscription and what its client was sent
//	ledger.go      what the client has, by name
//	push.go        what the client should have, versions, what follows CDS
//	pushdue.go     the next response of a type
//	acknack.go     ACKs and NACKs, resources held back
//	bisect.go      the search for the culprit after a NACK
//	linger.go      removed clusters that stay with the client
//	resume.go      first responses to a client that reconnects
//	delta.go       subscriptions and reconnects of the delta protocol
//	rejections.go  reports of rejections for the leader
//	status.go, contents.go  what reports and debug pages show
package stream
