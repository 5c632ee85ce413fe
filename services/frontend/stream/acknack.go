package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// hold is a resource that one client has rejected: until its content is
// another, the client keeps what it last applied.
type heldBack struct {
	bad  *xds.Resource
	good *xds.Resource // nil: nothing, or the empty resource
	// endpoints are those that good waits for, of a cluster: they stay while
	// it does.
	endpoints *xds.Resource
	// trial: it may be good; it was in a rejected response, and is to be sent
	// again with fewer others.
	trial bool
	// verdict: it is to blame, and so it is for other clients; message is what
	// the client said, and world the version at which it had good.
	blamed  bool
	message string
	world   ident.Position
}

// Nack is a rejection that still stands.
type Nack struct {
	Version string
	Message string // cut where it is very long
	Time    time.Time
	// Resources are the names it speaks of, as far as they are known.
	Resources []string
	// Bind says that the client could not listen on an address: nothing that
	// the content is to blame for, and nothing that concerns other clients.
	Bind bool
}

// settle takes in the answer to a response.
func (s *Stream) answer(now time.Time, w *watch, r Request) {
	i := slices.IndexFunc(w.unanswered, func(o outstanding) bool { return o.nonce == r.Nonce })
	if i < 0 {
		return // answered before; E2 repeats such a request
	}
	o := w.unanswered[i]
	var earlier []outstanding
	if i > 0 {
		earlier = slices.Clone(w.unanswered[:i])
	}
	w.unanswered = slices.Delete(w.unanswered, 0, i+1)
	w.dirty = true
	if w.t == ident.CDS && len(w.unanswered) == 0 {
		s.warmUntil, w.suspected = time.Time{}, unsuspected
	}
	// Only Envoy says errors of earlier responses with an ACK (E14). Parts of what
	// was split for gRPC have one version: what a client of it rejects it says so.
	if r.Rejected && (s.cfg.Delta || s.cfg.GRPC || r.Version != o.version) {
		s.nack(now, w, &o, earlier, r.Error)
		return
	}
	// Earlier responses are seen, not applied (E14, E15). Of whole types this
	// one held everything; of the others what it did not hold comes again.
	again := overtaken(earlier, &o)
	w.exceptItems(again)
	s.ack(now, w, &o)
	w.sendAgain(again)
	if r.Rejected && len(again) > 0 {
		s.recordNack(now, w, Nack{Message: cut(r.Error), Time: now})
	}
}

func (s *Stream) ack(now time.Time, w *watch, o *outstanding) {
	w.status.ackedVersion, w.status.ackedTime = o.version, now
	s.cfg.Observe(Event{Kind: Acked, Type: w.t, World: o.world, Published: o.made, Sent: o.at})
	whole := true
	if w.whole {
		w.ackedList, w.ackedSum = o.list, o.sum
		if !w.wildcard {
			w.ackedList, w.ackedSum = only(o.list, w.names)
		}
	} else {
		for i := range w.entries {
			e := &w.entries[i]
			if r, ok := o.find(e.name); ok {
				e.acked, e.applied = r, true
			}
			e.owed, e.lost = e.owed || e.lost, false
		}
		if o.set != nil {
			w.acked = o.set
		}
		if len(w.unanswered) == 0 {
			w.ledger.dropNeedless()
		}
		whole = w.applied()
	}
	whole = whole && len(w.trials) == 0
	if whole {
		w.tainted, w.tried = false, 0
	}
	if whole && len(w.heldBack) == 0 {
		w.nack = nil
		w.status.acked = o.world
	}
}

// unsettled is the items of earlier responses that are not in o.
func overtaken(earlier []outstanding, o *outstanding) []item {
	var items []item
	for i := range earlier {
		for _, it := range earlier[i].items() {
			if _, in := o.find(it.name); !in {
				items = append(items, it)
			}
		}
	}
	return items
}

// exceptItems makes entries of items while it is known what was applied of them.
func (w *watch) exceptItems(items []item) {
	if w.whole {
		return
	}
	for _, it := range items {
		if w.covers(it.name) {
			w.except(it.name)
		}
	}
}

// sendAgain makes items to be sent again that the client may not have.
func (w *watch) sendAgain(items []item) {
	if w.whole {
		return
	}
	for _, it := range items {
		if e := w.entry(it.name); e != nil && (!e.applied || !e.acked.Same(it.resource)) {
			e.owed = true
		}
	}
}

// reject takes in a NACK of o. Nothing is sent again as it was: what is named
// in the message is held back, and the rest is sent without it; where nobody is
// named, the rest is sent in halves.
func (s *Stream) nack(now time.Time, w *watch, o *outstanding, earlier []outstanding, message string) {
	items := o.items()
	missed := overtaken(earlier, o)
	w.exceptItems(missed)
	w.exceptItems(items)
	suspects := slices.DeleteFunc(slices.Clone(items), func(it item) bool {
		return it.resource == nil || w.lastGood(it.name).Same(it.resource)
	})
	n := Nack{Version: o.version, Message: cut(message), Time: now, Bind: isBind(message)}
	culprits := mentioned(message, suspects)
	known := len(culprits) > 0 || len(suspects) == 1
	if len(culprits) == 0 && (known || w.tried >= maxTrials) {
		culprits = suspects
	}
	for _, c := range culprits {
		if s.holdBack(w, c, false) && known && !n.Bind {
			h := w.heldBack[c.name]
			h.blamed, h.message, h.world = true, n.Message, w.appliedAllOf
			if h.world.IsZero() {
				h.world = w.status.acked
			}
			w.heldBack[c.name] = h
		}
	}
	if len(culprits) == 0 && len(suspects) > 1 {
		s.bisect(w, suspects)
	}
	// Of EDS and RDS, and in delta, all else in the response is unknown (E12,
	// E13, E26). A client that rejects what it has, or the empty resource, is
	// not sent that again: it would for ever.
	rest := missed
	if len(suspects) > 0 {
		rest = append(rest, items...)
	}
	w.sendAgain(slices.DeleteFunc(rest, func(it item) bool { _, held := w.heldBack[it.name]; return held }))
	if w.whole {
		w.owed = w.owed || len(suspects) > 0
	} else if len(w.unanswered) == 0 {
		w.ledger.dropNeedless()
	}
	named := culprits
	if len(named) == 0 {
		named = mentioned(message, items)
	}
	for _, it := range named {
		n.Resources = append(n.Resources, it.name)
	}
	s.recordNack(now, w, n)
}

func (s *Stream) recordNack(now time.Time, w *watch, n Nack) {
	w.tainted = true
	w.nack = &n
	w.status.nacks++
	s.cfg.Observe(Event{Kind: Nacked, Type: w.t, World: w.status.sent, Nack: n, Sent: now})
}

// maxMessage is how much is kept of a message, which names every culprit.
const maxMessage = 4 << 10

func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "..."
}

// isBind says whether a message of Envoy's is about an address on which it
// cannot listen.
func isBind(message string) bool {
	return strings.Contains(message, "cannot bind") || strings.Contains(message, "Address already in use")
}

// holdBack keeps a resource from the client, if it is what it should have.
func (s *Stream) holdBack(w *watch, bad item, trial bool) bool {
	if !bad.resource.Same(s.want(w, bad.name)) {
		return false // there is another already
	}
	if w.heldBack == nil {
		w.heldBack = make(map[string]heldBack)
	}
	good := w.lastGood(bad.name)
	h := heldBack{bad: bad.resource, good: good, trial: trial}
	if w.t == ident.CDS && good != nil && good.Endpoints() != "" {
		h.endpoints = s.view.Sets[ident.EDS].Find(good.Endpoints())
		if eds := s.watches[ident.EDS]; h.endpoints == nil && eds != nil {
			h.endpoints = eds.lastGood(good.Endpoints())
		}
	}
	w.heldBack[bad.name] = h
	e := w.entry(bad.name)
	switch {
	case w.whole || e == nil || trial: // on trial, the client may have it or not
	case good != nil:
		e.sent = good // it is what the client still has
	case w.t == ident.EDS || w.t == ident.RDS:
		e.owed = true // the empty resource, so that nothing waits for it
	}
	return true
}

// lift ends the holds of resources whose content is another in set.
func (w *watch) liftHeldBack(set *xds.Set) {
	if len(w.heldBack) == 0 {
		return
	}
	for name, h := range w.heldBack {
		if !h.bad.Same(set.Find(name)) {
			delete(w.heldBack, name)
		}
	}
	if len(w.heldBack) == 0 && len(w.trials) == 0 {
		w.nack = nil // what is served now was not rejected
	}
}

// mentioned is the items whose names are in a message of Envoy's, without
// those that are only part of another such name.
func mentioned(message string, items []item) []item {
	var found []item
	for _, it := range items {
		if mentions(message, it.name) {
			found = append(found, it)
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(it item) bool {
		return slices.ContainsFunc(found, func(o item) bool { return o.name != it.name && strings.Contains(o.name, it.name) })
	})
}

func mentions(message, name string) bool {
	if name == "" {
		return false
	}
	for at := 0; ; {
		i := strings.Index(message[at:], name)
		if i < 0 {
			return false
		}
		start, end := at+i, at+i+len(name)
		if (start == 0 || !inName(message[start-1])) && (end == len(message) || !inName(message[end])) {
			return true
		}
		at = start + 1
	}
}

// inName says whether a name may go on with c. A colon ends one in Envoy's
// messages, a full stop ends a sentence as well.
func inName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' ||
		c == '_' || c == '-' || c == '|' || c == '/'
}
