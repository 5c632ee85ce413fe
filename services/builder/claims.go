package builder

import (
	"fmt"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

const (
	// claimEvery is how often reports of frontends can make an epoch begin.
	claimEvery = time.Minute
	// claimAhead is how far an epoch that only a frontend knows may lie in the
	// future of this builder's clock: an epoch's number is the time at which it
	// began, by the clock of another builder.
	claimAhead = time.Hour
	// warnFor is how long a report mentions what has happened.
	warnFor = time.Hour
)

// claim is a frontend's report that it serves a version that the chain does not
// have.
type claim struct {
	frontend string
	own      ident.Position
	root     ident.Hash
}

// claims are the reports of frontends that the leader believes (BUS-3). A frontend
// cannot prove what it says: the log and the chain that could confirm it are
// lost. So the leader asks for what it can check: the chain does not have the
// version and cannot lead to it, and its epoch is one that the leader knows, or
// one that can have begun by now. What is left, an invented version, costs a new
// epoch, so that happens once a minute at most.
type claims struct {
	newest  claim     // the greatest version that is believed
	began   time.Time // when an epoch began for a report
	refused event     // the last claim that was not believed
	counted event     // the last epoch that began for a report
}

// event is something that a report mentions for a while.
type event struct {
	at   time.Time
	text string
}

func (e event) recent(now time.Time) bool { return e.text != "" && now.Sub(e.at).Abs() < warnFor }

// Claim takes the report of a frontend that the head of the chain is below the
// version own with that root, or is that version with another root.
func (m *Machine) Claim(frontend string, own ident.Position, root ident.Hash) {
	e := &m.epochs
	c := claim{frontend, own, root}
	if !e.concerns(c) {
		return
	}
	if most := e.mostEpoch(); own.Epoch > most {
		e.refuse(c, fmt.Sprintf("epoch %d is in the future: no epoch after %d can have begun", own.Epoch, most))
		return
	}
	if e.claims.newest.own.Less(own) {
		e.claims.newest = c
	}
}

// concerns reports whether a claim says something about the present head: reports
// may be old, or of a frontend that can follow the chain again.
func (e *epochs) concerns(c claim) bool {
	head := e.chain.head
	switch {
	case c.own.Epoch < e.ledger.Position().Epoch, c.own.Less(head.Version()):
		return false // the frontend goes on to the head, or to the next version
	case c.own == head.Version():
		return c.root != store.RootOf(head.Manifest)
	}
	return true
}

// mostEpoch returns the greatest epoch that a frontend may have seen.
func (e *epochs) mostEpoch() uint64 {
	known := max(e.ledger.Position().Epoch, e.chain.head.Version().Epoch, e.chain.file.stored.Version().Epoch)
	return max(known, uint64(e.cfg.Now().Add(claimAhead).Unix()))
}

// claimed reports whether an epoch must begin for a claim.
func (e *epochs) claimed() bool {
	c := e.claims.newest
	if c.own.IsZero() || !e.concerns(c) {
		return false
	}
	return e.claims.began.IsZero() || e.cfg.Now().Sub(e.claims.began).Abs() >= claimEvery
}

// refuse notes a claim that is not believed. It logs one a minute.
func (e *epochs) refuse(c claim, reason string) {
	e.stats.Doubted++
	now := e.cfg.Now()
	if last := e.claims.refused; last.text == "" || now.Sub(last.at).Abs() >= claimEvery {
		e.cfg.Logger.Warn("a report is not believed: a frontend serves a version that the chain does not have",
			"frontend", c.frontend, "version", c.own, "reason", reason,
			"advice", "its file is of another mesh or was made with a wrong clock: delete it; or the frontend is not one of yours: replace the frontends' key")
	}
	e.claims.refused = event{now, fmt.Sprintf("frontend %s reports a version %s that cannot exist (%s): nothing was done. Delete its file, or replace the frontends' key on the bus", c.frontend, c.own, reason)}
}

// believed notes that an epoch begins for a claim.
func (e *epochs) believed() {
	c, now := e.claims.newest, e.cfg.Now()
	e.stats.Claimed++
	e.claims.began = now
	e.claims.counted = event{now, fmt.Sprintf("an epoch began because frontend %s reported version %s, which the chain does not have: see why the chain lost it. If it never had it, replace the frontends' key on the bus", c.frontend, c.own)}
}
