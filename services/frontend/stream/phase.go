package stream

// A type on a stream has a phase, a scope, a trust and, for CDS, a suspicion; a
// name has a delivery and a standing, and a verdict while it is held back. The
// package documentation draws how each of them changes.

// phase is what the stream does next about a type.
type phase uint8

const (
	// unresolved: the versions that the client named may be newer than the
	// served one, so nothing is answered (I5).
	unresolved phase = iota
	// first: nothing was sent. The next response holds everything.
	first
	// due: what was sent may differ from what the client should have.
	due
	// allOwed: everything is sent, even what the client was sent before.
	allOwed
	// current: the client was sent all that it should have, apart from what is
	// held back.
	current
	// oversized: the next response is larger than the client can receive (G11).
	oversized
)

// touch makes Next look at the type again.
func (w *watch) touch() {
	switch w.phase {
	case current:
		w.begin()
	case oversized:
		w.phase = w.oversize.phase
	}
}

// begin is the phase after unresolved, and after current.
func (w *watch) begin() {
	if w.phase = due; w.sent == nil {
		w.phase = first
	}
}

// oweAll makes the next response hold everything.
func (w *watch) oweAll() {
	if w.touch(); w.phase == due {
		w.phase = allOwed
	}
}

// scope is what the client subscribes to.
type scope uint8

const (
	// unnamed: nothing yet. An empty list of clusters or listeners asks for all.
	unnamed scope = iota
	// byName: the names in ledger.names. In SotW, an empty list asks for
	// nothing from now on (G4).
	byName
	// implicitAll: everything, by an empty list of names.
	implicitAll
	// explicitAll: everything, by "*". In SotW, an empty list asks for nothing
	// from now on.
	explicitAll
	// unasked: everything, although the client did not request the type (E16).
	unasked
)

// clusters is what the stream knows about the clusters of the client.
type clusters uint8

const (
	// noClusters: the client has not requested CDS, and no version that it names
	// was sent on a stream with CDS. Its clusters, if any, are not from here.
	noClusters clusters = iota
	// formerClusters: it had CDS on an earlier stream, and has not requested it
	// on this one (E9, E16).
	formerClusters
	// requestedClusters: it has requested CDS.
	requestedClusters
	// currentClusters: it has the clusters that it should have, and none were sent
	// on this stream.
	currentClusters
)

// greeting is whether the client, if it has versions, must get a message so that
// its backoff ends (E29).
type greeting uint8

const (
	noGreeting   greeting = iota // the client has named no version
	greetingOwed                 // it has, and nothing was sent
	greeted                      // something was sent
)

// trust is what NACKs have left of the versions that the client names.
type trust uint8

const (
	// trusted: the client has ACKed a full set since its last NACK.
	trusted trust = iota
	// tainted: it has not. The version of every response is one of its own.
	tainted
	// searching: tainted, and the groups in watch.trials wait to be sent one by
	// one.
	searching
)

// suspicion is what was done about CDS without an answer (E16). The first
// answer to the last response ends it.
type suspicion uint8

const (
	unsuspected suspicion = iota
	sentAgain             // everything was sent again
	takingBack            // the clusters in watch.retake are removed next
	takenBack             // they were removed, and offered again
)

// delivery is what the stream does next about a name.
type delivery uint8

const (
	asked     delivery = iota // the client waits for a first answer: sent next
	delivered                 // entry.sent was sent: sent next if it differs
	owed                      // sent next, even if the client was sent it before
	lost                      // as delivered; owed with the next ACK, because the response that held it was forgotten
)

// answered reports whether entry.sent is what the client was sent, or
// reconnected with.
func (d delivery) answered() bool { return d != asked }

// standing is what is known about the content that the client has of a name.
type standing uint8

const (
	unconfirmed standing = iota // unknown
	confirmed                   // it has entry.acked
)

// verdict is why a resource is held back.
type verdict uint8

const (
	// onTrial: it was in a rejected response and may be good. It is sent again
	// with fewer others.
	onTrial verdict = iota
	// withheld: the client rejects it. Other clients may accept it.
	withheld
	// culprit: it caused the rejection, so other clients would reject it too.
	culprit
)

// owe makes the next response hold the name.
func (e *entry) owe() {
	if e.delivery != asked {
		e.delivery = owed
	}
}

// lose notes that no answer to the response that held the name will be known.
func (e *entry) lose() {
	if e.delivery == delivered {
		e.delivery = lost
	}
}
