package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
)

// hold is a resource that one client has rejected: until its content is
// another, the client keeps what it last applied.
type hold struct {
	bad  *xds.Resource
	good *xds.Resource // nil: nothing, or the empty resource
}

// Nack is a rejection that still stands.
type Nack struct {
	Version string
	Message string
	Time    time.Time
	// Resources are the names it speaks of, as far as they are known.
	Resources []string
}

// settle takes in the answer to a response.
func (s *Stream) settle(now time.Time, w *watch, r Request) {
	i := slices.IndexFunc(w.sentOut, func(o outstanding) bool { return o.nonce == r.Nonce })
	if i < 0 {
		return // answered before; E2 repeats such a request
	}
	o, earlier := w.sentOut[i], slices.Clone(w.sentOut[:i])
	w.sentOut = slices.Clone(w.sentOut[i+1:])
	w.dirty = true
	if w.t == model.CDS && len(w.sentOut) == 0 {
		s.gateUntil, w.suspected = time.Time{}, false
	}
	if r.Rejected && r.Version != o.version {
		s.reject(now, w, o, earlier, r.Error)
		return
	}
	s.accept(now, w, o)
	// Earlier responses are seen, not applied (E14, E15). Of CDS and LDS this
	// one held everything; of the others what it did not hold comes again, if
	// one was rejected in responses of its own.
	again := unsettled(earlier, o)
	w.sendAgain(again, r.Rejected)
	if r.Rejected && len(again) > 0 {
		s.rejected(now, w, Nack{Message: r.Error, Time: now})
	}
}

func (s *Stream) accept(now time.Time, w *watch, o outstanding) {
	w.status.AckedVersion, w.status.AckedTime = o.version, now
	s.cfg.Observe(Event{Kind: Acked, Type: w.t, World: o.world, Published: o.made, Sent: o.at})
	whole := true
	if w.full() {
		w.acked, w.ackedSum = o.list, o.sum
		if !w.wildcard {
			w.acked, w.ackedSum = only(o.list, w.names)
		}
	} else {
		for _, it := range o.items {
			if e := w.entry(it.name); e != nil {
				e.acked, e.applied = it.resource, true
			}
		}
		whole = w.applied()
	}
	if whole {
		w.tainted = false
	}
	if whole && len(w.holds) == 0 {
		w.nack = nil
		w.status.Acked = o.world
	}
}

// applied says whether the client has applied everything that it was sent.
func (w *watch) applied() bool {
	if len(w.sentOut) > 0 {
		return false
	}
	if w.full() {
		return !w.wildcard && len(w.names) == 0 || w.everGot && w.ackedSum == w.sentSum
	}
	return !slices.ContainsFunc(w.entries, func(e entry) bool { return !e.applied || !e.acked.Same(e.sent) })
}

// unsettled is the items of earlier responses that are not in o.
func unsettled(earlier []outstanding, o outstanding) []item {
	var items []item
	for _, e := range earlier {
		for _, it := range e.items {
			if !slices.ContainsFunc(o.items, func(x item) bool { return x.name == it.name }) {
				items = append(items, it)
			}
		}
	}
	return items
}

func (w *watch) sendAgain(items []item, alone bool) {
	for _, it := range items {
		if e := w.entry(it.name); e != nil && (!e.applied || !e.acked.Same(it.resource)) {
			e.owed, e.alone = true, alone
		}
	}
}

// reject takes in a NACK of o. Nothing is sent again as it was: what is named
// in the message is held back, and the rest is sent without it.
func (s *Stream) reject(now time.Time, w *watch, o outstanding, earlier []outstanding, message string) {
	items := o.items
	if w.full() {
		for _, r := range o.list {
			items = append(items, item{r.Name, r})
		}
	}
	all := append(unsettled(earlier, o), items...)
	suspects := slices.DeleteFunc(slices.Clone(items), func(it item) bool {
		return it.resource == nil || w.lastGood(it.name).Same(it.resource)
	})
	culprits := mentioned(message, suspects)
	if len(culprits) == 0 && len(suspects) == 1 {
		culprits = suspects
	}
	for _, c := range culprits {
		w.holdBack(c, w.lastGood(c.name))
	}
	if !w.full() {
		// EDS and RDS: all else in the response is unknown (E12, E13). Where
		// nobody is named, one by one. A client that rejects what it has, or
		// the empty resource, is not sent that again: it would for ever.
		if len(suspects) == 0 {
			all = unsettled(earlier, o)
		}
		rest := slices.DeleteFunc(all, func(it item) bool { return slices.Contains(culprits, it) })
		w.sendAgain(rest, len(culprits) == 0 && len(suspects) > 1)
	}
	named := culprits
	if len(named) == 0 {
		named = mentioned(message, items)
	}
	n := Nack{Version: o.version, Message: message, Time: now}
	for _, it := range named {
		n.Resources = append(n.Resources, it.name)
	}
	s.rejected(now, w, n)
}

func (s *Stream) rejected(now time.Time, w *watch, n Nack) {
	w.tainted = true
	w.nack = &n
	w.status.Nacks++
	s.cfg.Observe(Event{Kind: Nacked, Type: w.t, World: w.status.Sent, Nack: n, Sent: now})
}

// lastGood is what the client last applied of a name; nil: nothing.
func (w *watch) lastGood(name string) *xds.Resource {
	if !w.full() {
		if e := w.entry(name); e != nil && e.applied {
			return e.acked
		}
		return nil
	}
	if i, ok := xds.Search(w.acked, name); ok {
		return w.acked[i]
	}
	return nil
}

func (w *watch) holdBack(bad item, good *xds.Resource) {
	if w.holds == nil {
		w.holds = make(map[string]hold)
	}
	w.holds[bad.name] = hold{bad: bad.resource, good: good}
	e := w.entry(bad.name)
	switch {
	case e == nil:
	case good == nil:
		e.owed = true // the empty resource, so that nothing waits for it
	default:
		e.sent = good // it is what the client still has
	}
}

// lift ends the holds of resources whose content is another in set.
func (w *watch) lift(set *xds.Set) {
	for name, h := range w.holds {
		if !h.bad.Same(set.Find(name)) {
			delete(w.holds, name)
		}
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
