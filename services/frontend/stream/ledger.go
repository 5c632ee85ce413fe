package stream

import (
	"iter"
	"slices"
	"strings"

	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// ledger records, by name, what the client has of a type.
//
// Usually it is a subscription and two Sets: the client was sent sent and has
// applied acked, for every subscribed name. An entry records a name for which
// that is not true, and is dropped when it is true again. An idle stream has no
// entries. For CDS and LDS in SotW, whose responses hold everything
// (watch.whole), the Sets are what these responses held, and there never are
// entries.
type ledger struct {
	names *names.Names
	scope scope
	// What was sent, and last applied, of names without an entry; nil: nothing.
	// A name that is not in sent was answered as absent.
	sent, acked *xds.Set
	// sum is the Sum of the names in sent, unless all are subscribed.
	sum     xds.Sum
	entries entries
	// ahead are the names of the entries that were made for names without
	// subscription since the last dropAhead.
	ahead []string
	// lost: an entry may be lost.
	lost bool
}

// entry records what the client has of one name. A name that is not subscribed
// has an entry if it was pushed ahead of the client's request.
type entry struct {
	name string
	// What was last sent, and last applied; nil: nothing, or the empty
	// resource.
	sent, acked *xds.Resource
	delivery    delivery
	standing    standing
	changed     bool // the next response must look at it
}

// hasApplied reports whether the client is known to have r of a name; nil:
// nothing, or the empty resource.
func (e *entry) hasApplied(r *xds.Resource) bool { return e.standing == confirmed && e.acked.Same(r) }

func compareEntry(e entry, name string) int { return strings.Compare(e.name, name) }

// all reports whether every name is subscribed.
func (l *ledger) all() bool { return l.scope >= implicitAll }

// covers reports whether a name is subscribed.
func (l *ledger) covers(name string) bool { return l.all() || l.names.Has(name) }

// state returns what the client has of a name.
func (l *ledger) state(name string) entry {
	if e := l.entries.find(name); e != nil {
		return *e
	}
	return l.initial(name)
}

// initial returns the state of a name without an entry.
func (l *ledger) initial(name string) entry {
	if !l.covers(name) {
		return entry{name: name}
	}
	return l.implied(name)
}

// implied returns the state of a subscribed name that follows from the Sets.
func (l *ledger) implied(name string) entry {
	e := entry{name: name}
	if l.sent != nil {
		e.sent, e.delivery = l.sent.Find(name), delivered
	}
	if l.acked != nil {
		e.acked, e.standing = l.acked.Find(name), confirmed
	}
	return e
}

// except returns the entry of a name to be changed, which it makes if there is
// none. The pointer is valid until the next call.
func (l *ledger) except(name string) *entry {
	if e := l.entries.change(name); e != nil {
		return e
	}
	if !l.covers(name) {
		l.ahead = append(l.ahead, name)
	}
	return l.entries.insert(l.initial(name))
}

// dropAhead forgets what was pushed ahead and not requested.
func (l *ledger) dropAhead() {
	for _, name := range l.ahead {
		if !l.covers(name) {
			l.entries.remove(name)
		}
	}
	l.ahead = nil
}

// dropOthers forgets what is not subscribed, after all names were.
func (l *ledger) dropOthers() {
	l.entries.removeIf(func(e *entry) bool { return !l.covers(e.name) })
	l.ahead = nil
}

// dropNeedless drops the entries that are equal to what the Sets imply. Every
// response must have been answered.
func (l *ledger) dropNeedless() {
	if l.sent == nil {
		return
	}
	l.acked = l.sent
	l.entries.settle(func(e *entry) bool {
		if !l.covers(e.name) {
			return false // pushed ahead
		}
		implied := l.sent.Find(e.name)
		return e.delivery == delivered && e.sent.Same(implied) && e.hasApplied(implied)
	})
}

// subscribe replaces the subscription by n. A new name is unanswered unless it
// was pushed ahead; a name that leaves is forgotten.
func (l *ledger) subscribe(n *names.Names) {
	if l.sent == nil && l.acked == nil {
		l.names = n
		l.dropOthers()
		return
	}
	var added, removed []string
	names.Differ(l.names, n, func(name string, is bool) {
		if is {
			added = append(added, name)
		} else {
			removed = append(removed, name)
		}
	})
	l.change(n, added, removed)
	l.dropAhead()
}

// change is subscribe with the sorted names that the change adds and removes. What
// was pushed ahead stays.
func (l *ledger) change(n *names.Names, added, removed []string) {
	l.names = n
	for _, name := range removed {
		if !l.covers(name) {
			l.entries.remove(name)
		}
	}
	if l.sent == nil && l.acked == nil {
		return // nothing was answered yet
	}
	if l.sent != nil {
		for _, name := range slices.Concat(added, removed) {
			l.sum = l.sum.Add(names.SumOf(name, l.sent.Find(name)))
		}
	}
	l.ask(slices.DeleteFunc(slices.Clone(added), func(name string) bool { return l.entries.change(name) != nil }))
}

// subscribeAll subscribes to everything. The client has nothing under the names
// that this adds.
func (l *ledger) subscribeAll(how scope) {
	only := func(set *xds.Set) *xds.Set {
		if set == nil {
			return nil
		}
		return &xds.Set{Resources: slices.Collect(l.in(set))}
	}
	l.sent, l.acked = only(l.sent), only(l.acked)
	l.scope = how
	l.entries.changeAll()
}

// sumOf returns what a name and its resource, or nil, add to the Sum of the
// subscription.
func (l *ledger) sumOf(name string, r *xds.Resource) xds.Sum {
	if r == nil && l.all() {
		return xds.Sum{}
	}
	return names.SumOf(name, r)
}

// ask makes names unanswered, as if the client requested them for the first time.
func (l *ledger) ask(list []string) {
	for _, name := range list {
		if l.sent != nil || l.acked != nil {
			l.except(name)
		}
		if e := l.entries.change(name); e != nil {
			*e = entry{name: name, changed: true}
		}
	}
}

// had yields the resources that the client was sent.
func (l *ledger) had() iter.Seq[*xds.Resource] {
	return l.each(l.sent, func(e *entry) *xds.Resource { return e.sent })
}

// has yields the resources that the client has applied.
func (l *ledger) has() iter.Seq[*xds.Resource] {
	return l.each(l.acked, func(e *entry) *xds.Resource { return e.acked })
}

// size returns how many resources the client was sent.
func (l *ledger) size() int {
	if l.all() && l.sent != nil && l.entries.len() == 0 {
		return len(l.sent.Resources)
	}
	n := 0
	for range l.had() {
		n++
	}
	return n
}

func (l *ledger) each(set *xds.Set, of func(*entry) *xds.Resource) iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for e := range l.entries.all() {
			if r := of(e); r != nil && !yield(r) {
				return
			}
		}
		if set == nil {
			return
		}
		for r := range l.in(set) {
			if l.entries.find(r.Name) == nil && !yield(r) {
				return
			}
		}
	}
}

// in yields the subscribed resources in a set.
func (l *ledger) in(set *xds.Set) iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		if l.all() || l.names.Len() > len(set.Resources) {
			for _, r := range set.Resources {
				if l.covers(r.Name) && !yield(r) {
					return
				}
			}
			return
		}
		for name := range l.names.All() {
			if r := set.Find(name); r != nil && !yield(r) {
				return
			}
		}
	}
}
