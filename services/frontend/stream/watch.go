package stream

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// watch is one type's subscription on a stream, and what the client was sent.
//
// In SotW a CDS or LDS response holds everything that is subscribed (whole). An
// EDS or RDS response, and every delta response, holds what is due (E1).
type watch struct {
	t     ident.ResourceType
	whole bool

	phase phase
	ledger
	mark names.Mark // of the subscription in the last request
	// crossed holds what was sent before the client requested the type. The client
	// may have sent the request before it received this.
	crossed []entry

	// The versions that the client named in its first request, and the names that
	// changed while these were unresolved.
	claimed string
	initial names.Versions
	asked   *names.Names
	// askedSize is the memory of asked, in bytes.
	askedSize int

	lastNonce  string
	unanswered []outstanding // responses, oldest first
	suspected  suspicion
	retake     []string // added clusters to remove and offer again
	fresh      bool     // a new version changed the type, and no response was sent since: for Response.Cause
	oversize   oversize
	postponed  bool // the last response left something for later
	// awaited are the Secrets for whose keys the next response waits, until keysUntil.
	awaited   []string
	keysUntil time.Time

	trust        trust
	heldBack     map[string]heldBack // rejected resources, by name
	trials       [][]string          // groups of names on trial, to be sent one by one
	tried        int                 // how many groups were sent since the last full ACK
	appliedAllOf ident.Position      // the newest earlier version that the client applied in full
	nack         *reportv1.Nack

	progress Progress
}

// oversize is a response that is too large to be sent.
type oversize struct {
	sum   xds.Sum // of what the client should have; zero: it fits
	phase phase   // to which the type returns when something changes
}

// outstanding is a response without an answer.
type outstanding struct {
	nonce   string
	version string
	at      time.Time
	world   ident.Position
	made    time.Time // when world was published; zero: it did not cause the response
	list    []*xds.Resource
	removed []string
	set     *xds.Set // ledger.sent at that time
	whole   bool     // the client removes every name that list lacks
	secrets bool     // it adds a cluster that waits for secrets
}

// item is one name in a response; a nil resource is the empty one, or a
// removal.
type item struct {
	name     string
	resource *xds.Resource
}

// items returns what the response holds.
func (o *outstanding) items() []item {
	all := make([]item, 0, len(o.list)+len(o.removed))
	for _, r := range o.list {
		all = append(all, item{r.Name, notEmpty(r)})
	}
	for _, name := range o.removed {
		all = append(all, item{name, nil})
	}
	return all
}

// find returns the resource that the response holds under a name.
func (o *outstanding) find(name string) (*xds.Resource, bool) {
	if i, ok := xds.Search(o.list, name); ok {
		return notEmpty(o.list[i]), true
	}
	_, removed := slices.BinarySearch(o.removed, name)
	return nil, removed || o.whole
}

// notEmpty returns r, or nil if r is the empty resource that answers an unknown
// name.
func notEmpty(r *xds.Resource) *xds.Resource {
	if r.Sum == xds.Absent(r.Name) {
		return nil
	}
	return r
}

// underWay returns what the client will have of a name when it has read the responses
// that it has not answered, and whether one of them holds the name.
func (w *watch) underWay(name string) (r *xds.Resource, is bool) {
	for _, o := range slices.Backward(w.unanswered) {
		if r, is = o.find(name); is {
			return r, true
		}
	}
	return nil, false
}

// mayHold notes that the client may have what o holds of names that it asks for with the
// answer to o. Endpoints that are gone are emptied then (G7).
func (w *watch) mayHold(o *outstanding) {
	if w.entries.len() == 0 {
		return
	}
	for _, it := range o.items() {
		if e := w.entries.change(it.name); e != nil && e.delivery == asked && e.sent == nil {
			e.sent = it.resource
		}
	}
}

// maxOutstanding bounds the memory that a client which never answers costs.
const maxOutstanding = 32

// remember keeps a response until it is answered.
func (w *watch) remember(o outstanding) {
	if len(w.unanswered) == maxOutstanding {
		if !w.whole {
			for _, it := range w.unanswered[0].items() {
				if w.covers(it.name) {
					w.except(it.name).lose()
					w.lost = true
				}
			}
		}
		w.unanswered = slices.Delete(w.unanswered, 0, 1)
	}
	w.unanswered = append(w.unanswered, o)
}

// subscribed handles the names of a SotW request.
func (w *watch) subscribed(table *names.Table, wire names.Wire, begins bool) {
	mark := wire.Mark()
	if !begins && mark == w.mark {
		w.dropAhead()
		return
	}
	w.mark = mark
	n := table.Intern(wire)
	// An empty list of clusters or listeners means all, or none if the client has
	// named some before (G4).
	is := byName
	switch {
	case w.whole && n.Has(wildcard):
		is = explicitAll
	case w.whole && wire.Len() == 0 && (w.scope == unnamed || w.scope == implicitAll || w.scope == unasked):
		is = implicitAll
	}
	was, all := w.scope, w.all()
	w.scope = is
	switch {
	case all && w.all(), was == byName && is == byName && n == w.names:
		w.dropAhead()
		return
	case w.all():
		w.scope = was
		w.subscribeAll(is)
		w.names = nil
		w.oweAll()
	case all: // the client has what it names now
		w.names = n
		w.dropOthers()
		if w.sent != nil {
			w.sum = n.SumIn(w.sent)
		}
		w.oweAll()
	default:
		w.subscribe(n)
	}
	w.touch()
}

// unsubscribed handles the names of a request that crossed a response. It
// forgets the names that have left: the client has dropped them, even if its
// next request names them again (G4).
func (w *watch) unsubscribed(table *names.Table, wire names.Wire) {
	if w.all() || wire.Mark() == w.mark && len(w.ahead) == 0 {
		return
	}
	left := table.Intern(wire)
	w.dropUnknown(left)
	var gone []string
	names.Differ(w.names, left, func(name string, is bool) {
		if !is {
			gone = append(gone, name)
		}
	})
	if len(gone) == 0 {
		return
	}
	w.mark = names.Mark{}
	n := table.Without(w.names, gone)
	w.change(n, nil, gone)
	w.touch()
}

// dropUnknown forgets what was pushed ahead in responses that the client had read when it
// named something else: it did not know the names, so it has dropped the content.
func (w *watch) dropUnknown(named *names.Names) {
	w.ahead = slices.DeleteFunc(w.ahead, func(name string) bool {
		e := w.entries.find(name)
		_, unread := w.underWay(name)
		if e != nil && e.delivery != delivered || unread || named.Has(name) || w.covers(name) {
			return false
		}
		w.entries.remove(name)
		return true
	})
}

// owe marks names to be sent. With ahead, it adds names that are not
// subscribed.
func (w *watch) owe(list []string, ahead bool) {
	slices.Sort(list)
	list = slices.DeleteFunc(slices.Compact(list), func(name string) bool {
		if w.covers(name) {
			return w.sent == nil // the first response will hold all of them
		}
		return !ahead && w.entries.find(name) == nil
	})
	for _, name := range list {
		w.except(name).owe()
	}
	if len(list) > 0 {
		w.touch()
	}
}

// empty reports whether the client subscribes to nothing.
func (w *watch) empty() bool { return !w.all() && w.names.Len() == 0 }

// applied reports whether the client has applied everything that it was sent and still
// should have. A name that it did not request it drops, and of a name that is gone it may
// keep anything.
func (s *Stream) applied(w *watch) bool {
	switch {
	case len(w.unanswered) > 0:
		return false
	case w.sent == nil || w.empty():
		return w.empty()
	}
	for e := range w.entries.all() {
		if !e.hasApplied(e.sent) && w.covers(e.name) && s.want(w, e.name) != nil {
			return false
		}
	}
	return true
}

// Serves reports whether a resource is served to the client's class.
func (s *Stream) Serves(t ident.ResourceType, name string) bool {
	return s.view.Sets[t].Find(name) != nil
}

// Served returns the number of resources of a type that are served to the client's
// class.
func (s *Stream) Served(t ident.ResourceType) int { return len(s.view.Sets[t].Resources) }

// Names returns the names of a type that the client asked for, also if it asked for
// all resources besides.
func (s *Stream) Names(t ident.ResourceType) *names.Names {
	if w := s.watches[t]; w != nil {
		return w.names
	}
	return nil
}

// Subscription returns the names of a type whose changes the Stream must be
// told by Update. Request and Next may change it.
func (s *Stream) Subscription(t ident.ResourceType) content.Watch {
	w := s.watches[t]
	switch {
	case w == nil:
		return content.Watch{}
	case w.all():
		return content.Watch{All: true}
	}
	return content.Watch{Names: w.names}
}
