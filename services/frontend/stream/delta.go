package stream

import (
	"fmt"
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// wildcard is the name that subscribes to all resources of a type.
const wildcard = "*"

// subscribeDelta handles the names of the first request of a type. A request
// for clusters, listeners or names that names none asks for all (E18).
func (s *Stream) subscribeDelta(w *watch, r Request) {
	w.scope, w.names = byName, s.cfg.Names.Intern(r.Names)
	switch {
	case !w.t.Wildcard():
	case r.Names.Len() == 0:
		w.scope = implicitAll
	case w.names.Has(wildcard):
		w.scope, w.names = explicitAll, s.cfg.Names.Without(w.names, []string{wildcard})
	}
}

// resubscribe changes the subscription. A name that the client subscribes to is
// always answered, even if it was subscribed before. The work follows the names in
// the request, and not those that are subscribed (XDS-8).
func (s *Stream) resubscribe(w *watch, r Request) error {
	if err := s.noteAsked(w, r); err != nil {
		return err
	}
	if r.Unsubscribe.Len() > 0 {
		s.unsubscribe(w, r.Unsubscribe)
	}
	named := (*names.Names)(nil).Lacking(r.Names)
	if len(named) == 0 {
		return nil
	}
	w.touch()
	if i, has := slices.BinarySearch(named, wildcard); has && w.t.Wildcard() {
		named = slices.Delete(named, i, i+1)
		if !w.all() {
			w.subscribeAll(explicitAll)
			w.oweAll()
		}
	}
	added := slices.DeleteFunc(slices.Clone(named), w.names.Has)
	if w.names.Len()+len(added) > names.Max {
		return tooMany(w.t.String())
	}
	w.change(s.cfg.Names.With(w.names, added), added, nil)
	w.dropAhead()
	w.askAgain(named)
	return nil
}

// askAgain makes names unanswered to which the client subscribes, perhaps not for the
// first time. It may still have the filters that it was sent, or get them from a response
// that is under way, so these stay known (E44).
func (w *watch) askAgain(list []string) {
	if w.t != ident.ECDS || w.sent == nil && w.acked == nil {
		w.ask(list)
		return
	}
	for _, name := range list {
		e := w.except(name)
		if e.delivery, e.standing = asked, unconfirmed; e.sent == nil {
			e.sent, _ = w.underWay(name)
		}
	}
}

// noteAsked records the names of a request that comes while it is unresolved what
// the client has.
func (s *Stream) noteAsked(w *watch, r Request) error {
	if w.phase != unresolved {
		return nil
	}
	for _, wire := range [...]names.Wire{r.Names, r.Unsubscribe} {
		added := w.asked.Lacking(wire)
		for _, name := range added {
			w.askedSize += costOfName + len(name)
		}
		w.asked = s.cfg.Names.With(w.asked, added)
	}
	if w.asked.Len() > names.Max {
		return tooMany(w.t.String())
	}
	return nil
}

// tooMany is why a stream ends that subscribes to too much of a type.
func tooMany(t string) error {
	return fmt.Errorf("the stream names more than %d resources of %s: let the client import less, or split its configuration over several proxies", names.Max, t)
}

// unsubscribe removes names from the subscription and forgets what the client
// has of them. A name that a wildcard still covers is sent again.
func (s *Stream) unsubscribe(w *watch, wire names.Wire) {
	gone := w.names.Having(wire)
	if w.scope != byName && wire.Has(wildcard) {
		w.scope = byName
		w.dropOthers()
	}
	w.change(s.cfg.Names.Without(w.names, gone), nil, gone)
	w.dropAhead()
	w.touch()
	if !w.all() || w.sent == nil {
		return
	}
	for _, name := range gone {
		w.except(name).owe()
	}
}

// knownVersions reports whether every version that the client named is, or was,
// served here.
func (s *Stream) knownVersions(w *watch) bool {
	if w.initial.Len() == 0 || w.hasAllOf(s.view.Sets[w.t]) {
		return true
	}
	var past []content.View // found when they are needed
	for name, version := range w.initial.All() {
		if sum, ok := names.ParseSum(version); !ok || !s.servedEver(w.t, string(name), sum, &past) {
			return false
		}
	}
	return true
}

func (s *Stream) servedEver(t ident.ResourceType, name string, sum xds.Sum, past *[]content.View) bool {
	if sum == (xds.Sum{}) || sum == xds.Absent(name) {
		return true
	}
	if r := s.view.Sets[t].Find(name); r != nil && r.Sum == sum {
		return true
	}
	return s.formerly(t, name, sum, past) != nil
}

// formerly returns the resource with that name and Sum from an earlier view, or
// nil.
func (s *Stream) formerly(t ident.ResourceType, name string, sum xds.Sum, past *[]content.View) *xds.Resource {
	if *past == nil {
		*past = slices.AppendSeq([]content.View{}, s.cfg.Past)
	}
	for _, v := range *past {
		if r := v.Sets[t].Find(name); r != nil && r.Sum == sum {
			return r
		}
	}
	return nil
}

// hasAllOf reports whether the client reconnected with exactly the subscribed
// resources of a set.
func (w *watch) hasAllOf(set *xds.Set) bool {
	sum, ok := w.initial.Sum()
	if !ok {
		return false
	}
	// The sum alone does not do: a version that is added twice cancels itself.
	if !w.all() {
		return w.initial.Len() == w.names.Len() && sum == w.names.SumIn(set)
	}
	w.names.Select(set, func(name string, r *xds.Resource) { ok = ok && r != nil })
	return ok && w.initial.Len() == len(set.Resources) && sum == set.Sum
}

// resolveDelta decides on the first response: what differs from what the client
// has. It removes no clusters (E7).
func (s *Stream) resolveDelta(now time.Time, w *watch) {
	initial, set := w.initial, s.view.Sets[w.t]
	// Endpoints are answered whole unless the client requested its clusters
	// on this stream and they are current (E9).
	whole := s.cfg.GRPC || w.t == ident.EDS && s.clusters != currentClusters
	differs := false
	switch {
	case initial.Len() == 0: // everything is sent
	case w.hasAllOf(set):
		w.acked = set
		if !whole {
			w.sent = set
		}
		if w.t == ident.CDS && !whole {
			s.clusters = currentClusters
		}
		s.isCurrent(now, w, set.Sum.String())
	default:
		differs = true
		s.listed(w, initial, set)
		if whole {
			w.sent = nil
			for e := range w.entries.all() {
				if e.delivery = asked; e.sent != nil && set.Find(e.name) == nil {
					e.delivery = delivered
				}
			}
			w.entries.changeAll()
		}
	}
	w.initial = names.Versions{}
	w.mayHave(set)
	if differs && w.t == ident.CDS {
		s.lingerRemoved(now, s.view)
		s.findEndpoints(s.cfg.Past)
	}
	// The subscription changed before it was known what the client has.
	asked := slices.Collect(w.asked.All())
	w.askAgain(slices.DeleteFunc(asked, func(name string) bool { return !w.covers(name) }))
	w.asked, w.askedSize = nil, 0
}

// mayHave sends again what was sent before the client asked for the type, or
// removes it if it no longer exists.
func (w *watch) mayHave(set *xds.Set) {
	for _, c := range w.crossed {
		if !w.covers(c.name) {
			continue
		}
		e := w.except(c.name)
		if e.sent, e.delivery = c.sent, asked; set.Find(c.name) == nil {
			e.delivery = delivered
		}
		if c.standing == confirmed {
			e.acked, e.standing = c.acked, confirmed
		}
	}
	w.crossed = nil
}

// listed fills the ledger with the versions that the client named. If a version
// was never served here, only the name of the resource is known.
func (s *Stream) listed(w *watch, initial names.Versions, set *xds.Set) {
	had := make(map[string]*xds.Resource, initial.Len())
	var past []content.View
	for name, version := range initial.All() {
		n := string(name)
		if !w.covers(n) {
			continue
		}
		sum, _ := names.ParseSum(version)
		r := set.Find(n)
		if r == nil || r.Sum != sum {
			r = s.formerly(w.t, n, sum, &past)
		}
		if r == nil && sum != xds.Absent(n) {
			r = &xds.Resource{Name: n, Sum: sum}
		}
		had[n] = r
	}
	w.sent, w.acked = set, set
	var differ []string
	for r := range w.in(set) {
		if was, has := had[r.Name]; !has || !was.Same(r) {
			differ = append(differ, r.Name)
		}
	}
	for name := range w.names.All() {
		if _, has := had[name]; !has && set.Find(name) == nil {
			differ = append(differ, name)
		}
	}
	for name := range had {
		if set.Find(name) == nil {
			differ = append(differ, name)
		}
	}
	for _, name := range differ {
		e := w.except(name)
		e.sent, e.acked, e.delivery, e.standing = nil, nil, asked, unconfirmed
		if was, has := had[name]; has {
			e.sent, e.acked, e.delivery, e.standing = was, was, delivered, confirmed
		}
	}
}
