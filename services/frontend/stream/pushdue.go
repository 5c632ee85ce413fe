package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// batch is the content of one response that holds what is due.
type batch struct {
	list []*xds.Resource
	// old has, for each resource in list, the one that was sent before; nil:
	// none was.
	old     []*xds.Resource
	memo    *names.Memo // of list, if streams share it; else nil
	removed []string
}

// push returns the next response of a type, if one is due.
//
// A whole CDS response holds all clusters, but only the endpoints of those that
// were due are sent after it.
func (s *Stream) push(now time.Time, w *watch) (Response, bool) {
	if w.suspected == takingBack {
		return s.takeBack(now, w), true
	}
	if w.phase == current || w.phase == oversized {
		return Response{}, false
	}
	if w.empty() && w.entries.len() == 0 {
		w.phase = current
		return Response{}, false
	}
	if w.whole {
		s.nextTrial(w)
	}
	before := w.ledger
	if w.whole && s.cfg.GRPC { // it may be too large
		before.entries = w.entries.clone()
	}
	b := s.advanceTo(w, s.view.Sets[w.t])
	w.oweEntries()
	b = s.takeEntries(w, b)
	for b.empty() && s.nextTrial(w) {
		b = s.takeEntries(w, b)
	}
	if b.empty() && !(w.phase == first && w.all()) && !(w.phase == allOwed && w.whole) {
		w.phase = current
		if len(w.unanswered) == 0 {
			w.dropNeedless()
		}
		return Response{}, false
	}
	o := outstanding{list: b.list, removed: b.removed, set: w.sent}
	memo := b.memo
	switch {
	case w.whole:
		l := s.everything(w)
		if s.tooLarge(w, l) {
			w.ledger, w.oversize.phase, w.phase = before, w.phase, oversized
			return Response{}, false
		}
		o.list, o.removed, o.whole, memo = l.Resources, nil, true, &l.Memo
	case s.cfg.GRPC:
		b = w.postpone(b, func(_, size int) bool { return size <= maxGRPC })
		o.list, memo = b.list, b.memo
	case w.t == ident.SDS:
		b = w.postpone(b, func(n, _ int) bool { return n == 1 }) // E38
		o.list, memo = b.list, b.memo
	}
	if w.t == ident.CDS {
		o.secrets = s.clustersSent(now, w, w.phase == first && w.claimed == "", b.list, b.old)
	}
	w.phase = due
	return s.respond(now, w, o, memo), true
}

// everything returns all that the client should have of a type.
func (s *Stream) everything(w *watch) *names.List {
	return s.cfg.Names.List(w.t, s.subscriptionSum(w), false, func() []*xds.Resource {
		if w.all() && w.entries.len() == 0 {
			return w.sent.Resources
		}
		return slices.SortedFunc(w.had(), func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) })
	})
}

// tooLarge reports whether a gRPC client cannot receive a response that holds l.
func (s *Stream) tooLarge(w *watch, l *names.List) bool {
	if !s.cfg.GRPC {
		return false
	}
	size := 0
	for _, r := range l.Resources {
		size += len(r.Head) + r.Size()
	}
	if size <= maxGRPC {
		w.oversize = oversize{}
		return false
	}
	if sum := s.subscriptionSum(w); w.oversize.sum != sum {
		w.oversize.sum = sum
		s.cfg.Observe(Event{Kind: TooLarge, Type: w.t, Size: size})
	}
	return true
}

func (b *batch) empty() bool { return len(b.list)+len(b.removed) == 0 }

// advanceTo replaces the sent Set of the ledger by set, and returns the resources
// that must be sent for that.
func (s *Stream) advanceTo(w *watch, set *xds.Set) batch {
	var b batch
	switch {
	case w.sent == nil:
		b = s.firstAnswer(w, set)
	case w.sent != set:
		b = s.changes(w, set)
	}
	if w.sent != set {
		w.entries.changeAll()
	}
	w.sent = set
	return b
}

// firstAnswer returns everything that is subscribed.
func (s *Stream) firstAnswer(w *watch, set *xds.Set) batch {
	s.lingeringOf(w.t, func(r *xds.Resource) bool {
		if w.covers(r.Name) {
			w.except(r.Name)
		}
		return true
	})
	sum := set.Sum
	if !w.all() {
		w.sum = w.names.SumIn(set)
		sum = w.sum
	}
	l := s.cfg.Names.List(w.t, sum, s.cfg.GRPC, func() []*xds.Resource { return s.selected(w, set) })
	if w.t == ident.SDS {
		w.exceptKeys(set.Resources)
	}
	if w.t.Wildcard() || s.cfg.Delta && (s.cfg.GRPC || w.t == ident.SDS || w.t == ident.ECDS) {
		// A name without a resource is answered as removed (E22, SDS-8, POL-2).
		w.names.Select(set, func(name string, r *xds.Resource) {
			if r == nil {
				w.except(name).delivery = asked
			}
		})
	}
	if s.cfg.GRPC && w.t == ident.EDS && w.acked != nil {
		// The client has these endpoints; calls must not go to them.
		w.names.Select(set, func(name string, r *xds.Resource) {
			if r == nil && w.acked.Find(name) != nil {
				w.except(name).delivery = asked
			}
		})
	}
	if w.entries.len() == 0 {
		return batch{list: l.Resources, memo: &l.Memo}
	}
	var b batch
	for _, r := range l.Resources {
		if w.entries.find(r.Name) == nil {
			b.list = append(b.list, r)
		}
	}
	return b
}

// selected returns the subscribed resources in a set; of EDS and RDS also the
// empty ones that answer unknown names, unless the client is a gRPC client: it
// waits for what it is not sent, and then knows that it does not exist (PRO-6).
func (s *Stream) selected(w *watch, set *xds.Set) []*xds.Resource {
	if w.all() {
		return set.Resources
	}
	list := make([]*xds.Resource, 0, w.names.Len())
	w.names.Select(set, func(name string, r *xds.Resource) {
		if r == nil && !s.cfg.GRPC && (w.t == ident.EDS || w.t == ident.RDS) {
			r = xds.Empty(w.t, name)
		}
		if r != nil {
			list = append(list, r)
		}
	})
	return list
}

// changes returns the subscribed resources that differ from those that were
// sent. A name that needs a closer look gets an entry instead.
func (s *Stream) changes(w *watch, set *xds.Set) batch {
	ch := s.cfg.Names.Changes(w.sent, set)
	for _, r := range ch.Gone {
		if w.covers(r.Name) {
			w.except(r.Name)
			w.sum = w.sum.Add(r.Sum).Add(xds.Absent(r.Name))
		}
	}
	if w.t == ident.SDS {
		w.exceptKeys(ch.Resources)
	}
	all := true
	for i, r := range ch.Resources {
		if !w.covers(r.Name) {
			all = false
			continue
		}
		w.sum = w.sum.Add(names.SumOf(r.Name, ch.Old[i])).Add(r.Sum)
		all = all && w.entries.find(r.Name) == nil
	}
	if all {
		return batch{list: ch.Resources, old: ch.Old, memo: &ch.Memo}
	}
	var b batch
	for i, r := range ch.Resources {
		if w.covers(r.Name) && w.entries.find(r.Name) == nil {
			b.list, b.old = append(b.list, r), append(b.old, ch.Old[i])
		}
	}
	return b
}

// oweEntries makes entries for everything if all of it must be sent again. A
// whole response holds everything without them.
func (w *watch) oweEntries() {
	if w.phase != allOwed || w.whole {
		return
	}
	for r := range w.in(w.sent) {
		w.except(r.Name)
	}
	for e := range w.entries.all() {
		e.owe()
	}
	w.entries.changeAll()
}

// takeEntries adds the entries that are due to b. Only those that were changed, or
// with which something else was, can be.
func (s *Stream) takeEntries(w *watch, b batch) batch {
	for e := range w.entries.takeChanged() {
		if !s.due(w, e) {
			continue
		}
		was, r := e.sent, s.want(w, e.name)
		e.sent, e.delivery = r, delivered
		named := w.t == ident.EDS || w.t == ident.RDS
		switch {
		case r != nil && r.Pieces == nil:
			// A resuming client keeps a resource whose content is unknown here.
			e.acked, e.standing = r, confirmed
		case r == nil && named && s.cfg.GRPC && !s.cfg.Delta && was == nil && e.acked == nil:
			// SotW tells a gRPC client of absence by silence (PRO-6).
			e.standing = confirmed
		case r == nil && (w.t == ident.SDS || w.t == ident.ECDS) && !s.cfg.Delta:
			e.acked, e.standing = nil, confirmed // SotW has no word for it (SDS-8, E44)
		case r != nil || named && !(s.cfg.GRPC && s.cfg.Delta):
			if r == nil {
				r = xds.Empty(w.t, e.name)
			}
			b = b.insert(r, was)
		default:
			b.removed = append(b.removed, e.name)
		}
	}
	return b
}

// insert adds one resource to b, which then has a list of its own.
func (b batch) insert(r, was *xds.Resource) batch {
	if b.memo != nil {
		b.list, b.old, b.memo = slices.Clone(b.list), slices.Clone(b.old), nil
	}
	if b.old == nil {
		b.old = make([]*xds.Resource, len(b.list))
	}
	i, in := xds.Search(b.list, r.Name)
	if in {
		b.list[i] = r
		return b
	}
	b.list, b.old = slices.Insert(b.list, i, r), slices.Insert(b.old, i, was)
	return b
}

// postpone leaves for later what does not fit into b: fits is given how many resources
// it would hold, and their size in bytes. One always fits.
func (w *watch) postpone(b batch, fits func(n, size int) bool) batch {
	w.postponed = false
	size := 0
	for i, r := range b.list {
		if size += len(r.Head) + r.Size(); i == 0 || fits(i+1, size) {
			continue
		}
		for j, late := range b.list[i:] {
			e := w.except(late.Name)
			e.sent = nil
			if b.old != nil {
				e.sent = b.old[i+j]
			}
			if e.delivery = owed; w.phase == first {
				e.delivery = asked
			}
		}
		w.postponed = true
		return batch{list: b.list[:i:i], old: b.old}
	}
	return b
}

// takeBack removes added clusters that the client did not answer (E16); they
// are offered again right after.
func (s *Stream) takeBack(now time.Time, w *watch) Response {
	o := outstanding{removed: w.retake, set: w.sent}
	for _, name := range w.retake {
		e := w.except(name)
		e.sent, e.delivery = nil, delivered
	}
	w.retake, w.suspected = nil, takenBack
	w.touch()
	return s.respond(now, w, o, nil)
}
