// Package stream is the state machine of one xDS stream, state of the world
// (SotW) or delta, ADS or for a single type. It decides what to send next from
// the client's requests, the served view and the time. It knows no gRPC and has
// no clock. One goroutine at a time uses a Stream; its owner locks it:
//
//	s := stream.New(cfg, view)    // with the node of the first request
//	err := s.Request(now, r)      // each request that is received
//	s.Update(now, view)           // each new view that is served
//	for {                         // after each of these, and at s.Wake()
//		r, ok := s.Next(now)      // send the responses one after the other
//	}
//	s.Status()                    // for reports
//
// A Stream compares what the client should have with what it was sent, so a
// slow client gets the latest state and never a queue. The order is make before
// break: clusters, their endpoints, filters, listeners, routes. A removed cluster
// lingers until nothing refers to it. IDs such as E16 (Envoy) and G8 (gRPC)
// name rows of ../FACTS.md, the facts about real clients.
//
// # The state of a type
//
// A type that the client requested, or was sent unasked, has a watch. Its phase
// says what Next does about it:
//
//	unresolved --the head of the chain is served, or the wait ends--> first, due, allOwed
//	first      --response, with all that is subscribed--> due
//	due        --response, with what differs--> due
//	allOwed    --response, with everything--> due
//	first, due, allOwed
//	           --nothing to send--> current
//	           --too large for a gRPC client--> oversized
//	due        --CDS stays unanswered, silence, all instead of names--> allOwed
//	current    --view, answer, subscription--> due; first, if nothing was sent yet
//	oversized  --view, answer, subscription--> the phase before
//
// Three more states of a type do not change what the phase does:
//
//	scope      unnamed --first request--> byName, implicitAll or explicitAll;
//	           each of these and unasked --request--> another of these
//	trust      trusted --NACK--> tainted, or searching if it names no culprit;
//	           searching --NACK, with groups left--> searching;
//	           searching --the last group is sent--> tainted;
//	           tainted --ACK of a full set--> trusted
//	suspicion  of CDS without an answer: unsuspected --20 s--> sentAgain --60 s,
//	           in delta--> takingBack --removal--> takenBack; an answer to the
//	           last response, or (except in takenBack) another response, leads
//	           back to unsuspected
//
// # The state of a name
//
// The ledger of a watch holds what the client has, by name: its delivery is what
// the stream owes, its standing is what the client is known to have.
//
//	           | unconfirmed                     | confirmed
//	asked      | the client waits for an answer  | so it does after a reconnect
//	delivered  | sent, and not ACKed             | ACKed, or an earlier content was
//	owed       | sent again: it may not be there | sent again: asked to
//	lost       | sent, and the response is forgotten, so its ACK proves nothing
//
//	asked, owed --response--> delivered
//	delivered   --NACK, overtaken (E15)--> owed, unconfirmed
//	delivered   --endpoints after CDS (E2)--> owed
//	delivered   --32 later responses without an answer--> lost --ACK--> owed
//	any         --the client subscribes to the name--> asked, unconfirmed
//	any         --ACK of a response that holds it--> confirmed
//
// Only a name that is asked or owed, or whose content differs from what was
// delivered, is sent, except a filter that is gone and that the client may have
// (E44). A name without an entry is delivered and confirmed by the two Sets of
// the ledger. What the client should have is the view's, unless the
// name is held back by a verdict on the view's resource:
//
//	none      --NACK names it, or it was alone--> culprit; withheld, if the
//	            address was in use or 64 groups were tried
//	none      --NACK names nothing--> onTrial --sent again with its group--> none
//	any       --the view has another content--> none
//
// # The state of the stream
//
//	headState  headUnneeded --an unknown version--> headWaits --no bus--> headAway;
//	           headWaits, headAway --served, or time--> headDone
//	clusters   noClusters --a version from a stream with CDS--> formerClusters,
//	           which are sent unasked after a second (E16);
//	           any --CDS is requested--> requestedClusters, or currentClusters
//	           until CDS is sent
//	greeting   noGreeting --a version--> greetingOwed --any response--> greeted
//
// The rest are times at which Wake is due, and lists of what is to be sent.
//
// # Where to look
//
//	stream.go      requests, views, order of types, timers
//	phase.go       the states of types and names
//	watch.go       one type's subscription and what its client was sent
//	ledger.go      what the client has, by name
//	entries.go     names that differ from the rest, and which of them were changed
//	mark.go        versions that tell whether their stream had CDS
//	unserved.go    requests for types that are not served
//	push.go        what the client should have, versions, what follows CDS
//	pushdue.go     the next response of a type
//	acknack.go     ACKs and NACKs, resources held back
//	secret.go      Secrets whose private keys are here, coming or gone, and what waits for them
//	bisect.go      the search for the culprit after a NACK
//	filter.go      filters of policies that wait for clusters
//	linger.go      removed clusters that stay with the client
//	resume.go      first responses to a client that reconnects
//	delta.go       subscriptions and reconnects of the delta protocol
//	rejections.go  reports of rejections for the leader
//	status.go, contents.go  what reports and debug pages show
package stream
