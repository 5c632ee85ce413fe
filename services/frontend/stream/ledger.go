package stream

import (
	"iter"
	"slices"
	"strings"

	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// ledger is what is known of the client, by name, where a response holds what
// is due: EDS and RDS, and in delta all types.
//
// As long as nothing special has happened that is a subscription and two Sets:
// of every name the client was sent what one holds, and has applied what the
// other holds. An entry says what is known of a name where that is not true. It
// goes when it is true again, so a stream at rest has none.
type ledger struct {
	names    *names.Names
	wildcard bool // every name
	// What was sent, and last applied, of names without an entry; nil: nothing
	// was. An absent name was sent as that.
	sent, acked *xds.Set
	// sum is that of the names in sent.
	sum     xds.Sum
	entries []entry // by name
}

// entry is what is known of one name.
type entry struct {
	name string
	// What was last sent, and last applied; nil: nothing, or the empty
	// resource.
	sent, acked *xds.Resource
	answered    bool // something was sent, or is known to be there
	applied     bool // acked is what the client has
	owed        bool // to be sent even if it is what was sent
	ahead       bool // pushed before it was asked for
	lost        bool // the response that held it is forgotten
}

func compareEntry(e entry, name string) int { return strings.Compare(e.name, name) }

// covers says whether a name is subscribed.
func (l *ledger) covers(name string) bool { return l.wildcard || l.names.Has(name) }

func (l *ledger) find(name string) (int, bool) {
	return slices.BinarySearchFunc(l.entries, name, compareEntry)
}

// entry is that of a name, or nil.
func (l *ledger) entry(name string) *entry {
	if len(l.entries) == 0 {
		return nil
	}
	if i, ok := l.find(name); ok {
		return &l.entries[i]
	}
	return nil
}

// state is what is known of a name.
func (l *ledger) state(name string) entry {
	if e := l.entry(name); e != nil {
		return *e
	}
	if !l.covers(name) {
		return entry{name: name}
	}
	return l.implied(name)
}

// implied is what the Sets say of a subscribed name.

func (l *ledger) implied(name string) entry {
	e := entry{name: name}
	if l.sent != nil {
		e.sent, e.answered = l.sent.Find(name), true
	}
	if l.acked != nil {
		e.acked, e.applied = l.acked.Find(name), true
	}
	return e
}

// except returns the entry of a name, which is made if there is none. It is
// good until the next call.
func (l *ledger) except(name string) *entry {
	i, ok := l.find(name)
	if !ok {
		l.entries = slices.Insert(l.entries, i, l.implied(name))
	}
	return &l.entries[i]
}

// exceptAll makes an entry for each of many names, which are sorted.
func (l *ledger) exceptAll(sorted iter.Seq[string]) {
	merged := make([]entry, 0, len(l.entries)+8)
	left := l.entries
	for name := range sorted {
		for len(left) > 0 && left[0].name < name {
			merged, left = append(merged, left[0]), left[1:]
		}
		if len(left) > 0 && left[0].name == name {
			continue
		}
		merged = append(merged, l.implied(name))
	}
	l.entries = append(merged, left...)
}

// forget drops what is known of names; without an entry they are unknown only
// if they are not subscribed.
func (l *ledger) forget(drop func(*entry) bool) {
	l.entries = slices.DeleteFunc(l.entries, func(e entry) bool { return drop(&e) })
	if len(l.entries) == 0 {
		l.entries = nil
	}
}

// settle drops the entries that say nothing else than the Sets; no response
// may be without an answer.
func (l *ledger) settle() {
	if l.sent == nil {
		return
	}
	l.acked = l.sent
	if len(l.entries) == 0 {
		return
	}
	l.forget(func(e *entry) bool {
		if e.ahead {
			return false
		}
		implied := l.sent.Find(e.name)
		return e.answered && e.applied && !e.owed && e.sent.Same(implied) && e.acked.Same(implied)
	})
}

// subscribe makes n the subscription. What is new is not answered yet, unless
// it was pushed ahead; of what leaves nothing is known any more.
func (l *ledger) subscribe(n *names.Names) {
	old := l.names
	l.names = n
	l.forget(func(e *entry) bool { return !l.covers(e.name) })
	for i := range l.entries {
		l.entries[i].ahead = false
	}
	if l.sent == nil && l.acked == nil {
		return // nothing is answered
	}
	var added []string
	compareNames(old.List(), n.List(), func(name string, is bool) {
		if l.sent != nil {
			l.sum = l.sum.Add(names.SumOf(name, l.sent.Find(name)))
		}
		if is && l.entry(name) == nil {
			added = append(added, name)
		}
	})
	l.ask(added)
}

// ask makes names that are sorted to be answered as if they were asked for the
// first time.
func (l *ledger) ask(sorted []string) {
	if (l.sent != nil || l.acked != nil) && len(sorted) > 0 {
		l.exceptAll(slices.Values(sorted))
	}
	for _, name := range sorted {
		if e := l.entry(name); e != nil {
			*e = entry{name: name}
		}
	}
}

// compareNames calls differ with each name that is in one of two sorted lists
// only; is says that it is in next.
func compareNames(old, next []string, differ func(name string, is bool)) {
	for len(old) > 0 || len(next) > 0 {
		switch {
		case len(next) == 0 || len(old) > 0 && old[0] < next[0]:
			differ(old[0], false)
			old = old[1:]
		case len(old) == 0 || next[0] < old[0]:
			differ(next[0], true)
			next = next[1:]
		default:
			old, next = old[1:], next[1:]
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

func (l *ledger) each(set *xds.Set, of func(*entry) *xds.Resource) iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for i := range l.entries {
			if r := of(&l.entries[i]); r != nil && !yield(r) {
				return
			}
		}
		if set == nil {
			return
		}
		for r := range l.in(set) {
			if l.entry(r.Name) == nil && !yield(r) {
				return
			}
		}
	}
}

// in yields the subscribed resources in a set.
func (l *ledger) in(set *xds.Set) iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		if l.wildcard {
			for _, r := range set.Resources {
				if !yield(r) {
					return
				}
			}
			return
		}
		for _, name := range l.names.List() {
			if r := set.Find(name); r != nil && !yield(r) {
				return
			}
		}
	}
}
