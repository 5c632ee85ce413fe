package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/store"
)

// watch is one type's subscription on a stream, and what is known of what the
// client has.
//
// Of CDS and LDS a response always holds everything, of EDS and RDS what is
// due (E1).
type watch struct {
	t        model.ResourceType
	wildcard bool
	named    bool     // names were given on this stream
	names    []string // of CDS and LDS without wildcard, sorted

	// Until it is known what to think of the version that the first request
	// named, nothing is answered.
	unresolved bool
	claimed    string

	// dirty says that there may be something to send.
	dirty bool
	// owed says that CDS or LDS is to be answered even with what was sent.
	owed    bool
	everGot bool // a full response of CDS or LDS was sent, or is known to be there
	// CDS and LDS: everything that was last sent, and last applied.
	sent, acked       []*xds.Resource
	sentSum, ackedSum xds.Sum
	// EDS and RDS: by name, sorted.
	entries []entry

	lastNonce string
	sentOut   []outstanding // without an answer so far, oldest first
	suspected bool          // CDS was sent again since its last answer
	fresh     bool          // a new version changed the type, and nothing was sent since

	// After a NACK, until a full set is ACKed.
	tainted bool
	holds   map[string]hold // resources held back from this client
	nack    *Nack

	status TypeStatus
}

// entry is one subscribed name of EDS or RDS.
type entry struct {
	name string
	// What was last sent, and last applied; nil: nothing, or the empty
	// resource.
	sent, acked *xds.Resource
	answered    bool // something was sent, or is known to be there
	applied     bool // acked is what the client has
	owed        bool // to be sent even if it is what was sent
	alone       bool // to be sent in a response of its own
	ahead       bool // pushed before it was asked for
}

// outstanding is a response without an answer.
type outstanding struct {
	nonce   string
	version string
	at      time.Time
	world   store.Version
	made    time.Time // when that version was published; zero: it did not cause the response
	list    []*xds.Resource
	sum     xds.Sum
	items   []item // of EDS and RDS
	secrets bool   // it adds a cluster that waits for secrets
}

// item is one name in a response; a nil resource is the empty one.
type item struct {
	name     string
	resource *xds.Resource
}

// maxOutstanding bounds what is remembered of a client that never answers.
const maxOutstanding = 32

// full says whether every response of the type holds everything.
func (w *watch) full() bool { return w.t == model.CDS || w.t == model.LDS }

func (w *watch) firstNames(names []string) {
	names = normalize(names)
	w.named = len(names) > 0
	if !w.full() {
		w.setEntries(names)
		return
	}
	w.wildcard = len(names) == 0 || slices.Contains(names, "*")
	if !w.wildcard {
		w.names = names
	}
}

// setNames changes the subscription.
func (w *watch) setNames(names []string) {
	names = normalize(names)
	if !w.full() {
		w.setEntries(names)
		return
	}
	wasNamed := w.named
	w.named = w.named || len(names) > 0
	switch {
	case slices.Contains(names, "*"), len(names) == 0 && !wasNamed:
		if !w.wildcard {
			w.wildcard, w.names, w.owed, w.dirty = true, nil, true, true
		}
		return
	case slices.Equal(names, w.names) && !w.wildcard:
		return
	}
	// Empty after named is none (G4); a name that leaves is forgotten, one
	// that comes is answered.
	added := w.wildcard || slices.ContainsFunc(names, func(n string) bool { _, had := slices.BinarySearch(w.names, n); return !had })
	w.wildcard, w.names = false, names
	w.owed = w.owed || added && len(names) > 0
	w.dirty = true
	w.sent, w.sentSum = only(w.sent, names)
	w.acked, w.ackedSum = only(w.acked, names)
}

// only is what of list is named, and the Sum of a subscription to names.
func only(list []*xds.Resource, names []string) ([]*xds.Resource, xds.Sum) {
	var sum xds.Sum
	named := make([]*xds.Resource, 0, len(names))
	for _, n := range names {
		if i, ok := xds.Search(list, n); ok {
			named = append(named, list[i])
			sum = sum.Add(list[i].Sum)
		} else {
			sum = sum.Add(xds.Absent(n))
		}
	}
	return named, sum
}

// setEntries makes names the subscription of EDS or RDS. A name that leaves
// loses what was known of it; one that comes is answered, unless it was pushed
// ahead.
func (w *watch) setEntries(names []string) {
	same := len(names) == len(w.entries)
	for i := 0; same && i < len(names); i++ {
		same = names[i] == w.entries[i].name
		if same {
			w.entries[i].ahead = false
		}
	}
	if same {
		return
	}
	old := w.entries
	w.entries = make([]entry, 0, len(names))
	for _, n := range names {
		e := entry{name: n}
		if i, ok := slices.BinarySearchFunc(old, n, compareEntry); ok {
			e = old[i]
			e.ahead = false
		}
		w.entries = append(w.entries, e)
	}
	w.dirty = true
}

func compareEntry(e entry, name string) int { return strings.Compare(e.name, name) }

func (w *watch) entry(name string) *entry {
	if i, ok := slices.BinarySearchFunc(w.entries, name, compareEntry); ok {
		return &w.entries[i]
	}
	return nil
}

// owe marks a name to be sent; one that is not subscribed is added where that
// is wanted.
func (w *watch) owe(name string, ahead bool) {
	i, ok := slices.BinarySearchFunc(w.entries, name, compareEntry)
	if !ok {
		if !ahead {
			return
		}
		w.entries = slices.Insert(w.entries, i, entry{name: name, ahead: true})
	}
	w.entries[i].owed = true
	w.dirty = true
}

func (w *watch) remember(o outstanding) {
	if len(w.sentOut) == maxOutstanding {
		w.sentOut = slices.Delete(w.sentOut, 0, 1)
	}
	w.sentOut = append(w.sentOut, o)
}

// normalize sorts names and drops doubles.
func normalize(names []string) []string {
	if slices.IsSorted(names) && len(slices.Compact(slices.Clone(names))) == len(names) {
		return names
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}
