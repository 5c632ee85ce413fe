// Package index is what is known of a Kubernetes cluster, and what of it has been
// said: what arrives, converted, and what changes by it. It does no IO.
package index

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/watcher"
)

// Names of kinds that are treated in their own way.
const (
	serviceKind   = "Service"
	sliceKind     = "EndpointSlice"
	podKind       = "Pod"
	nodeKind      = "Node"
	namespaceKind = "Namespace"
)

// Index is what the feeds say together, and what of it has been said. One
// goroutine uses it; it does no IO.
type Index struct {
	selectors []labels.Selector // of namespaces; none: all count
	entries   map[Key]*entry
	touched   map[Key]time.Time // since changes was asked: when that was seen
	selected  map[string]bool   // namespaces that match a selector
	// slicesOf are the slices that refer to a pod, known or not; podsAt are the
	// pods that have an address for themselves.
	slicesOf, podsAt map[reference][]*entry
	// moved are the nodes that have changed, and what is converted by them was
	// not touched yet.
	moved   map[string]time.Time
	covered map[string]bool // kinds that are spoken of; nil: all
	seed    maphash.Seed

	held  map[string]int64 // objects, by the name of their feed
	stats map[string]Figures
}

// reference is how a slice names a pod of its namespace: by name, or by address.
type reference struct{ namespace, name, address string }

// entry is an object of the cluster, or (object nil) one that is gone and is
// still to be said so.
type entry struct {
	key     Key
	feed    *Feed
	object  *Object
	said    bool
	sum     uint64 // of what was said
	figures Figures
}

// Figures are about all objects of a kind that have been said.
type Figures struct {
	Objects, Undecoded int
	Podless            int // endpoints whose pod is not known
}

// Feed is where objects come from.
type Feed struct {
	Name string // tells it from all others
	// Resource is what kubectl calls its objects.
	Resource string
}

// New returns an index that knows nothing. With selectors, objects of namespaces
// whose labels none of them matches are as if they were not there.
func New(selectors []labels.Selector) *Index {
	return &Index{
		selectors: selectors, seed: maphash.MakeSeed(),
		entries: map[Key]*entry{}, touched: map[Key]time.Time{}, selected: map[string]bool{},
		slicesOf: map[reference][]*entry{}, podsAt: map[reference][]*entry{},
		moved: map[string]time.Time{}, held: map[string]int64{}, stats: map[string]Figures{},
	}
}

// Cover says of which kinds Changes speaks from now on; before, of all.
func (x *Index) Cover(kinds map[string]bool) { x.covered = kinds }

// Held is how many objects a feed has.
func (x *Index) Held(feed *Feed) int64 { return x.held[feed.Name] }

// Figures are those of each kind, by its name. The caller does not change them.
func (x *Index) Figures() map[string]Figures { return x.stats }

// Put takes in an object that is new or has changed.
func (x *Index) Put(feed *Feed, o *Object) {
	e := x.entries[o.Key]
	if e == nil {
		e = &entry{key: o.Key}
		x.entries[o.Key] = e
	}
	x.set(e, feed, o, o.Seen)
	x.touch(o.Key, o.Seen)
}

// Remove takes in that an object is gone.
func (x *Index) Remove(k Key, seen time.Time) {
	if e := x.entries[k]; e != nil {
		x.set(e, e.feed, nil, seen)
		x.touch(k, seen)
	}
}

// Replace takes in all that a feed holds.
func (x *Index) Replace(feed *Feed, all []*Object, seen time.Time) {
	for _, k := range x.Missing(feed, all) {
		x.Remove(k, seen)
	}
	for _, o := range all {
		x.Put(feed, o)
	}
}

// Missing are the objects of a feed that are not in a list of all it holds.
func (x *Index) Missing(feed *Feed, all []*Object) []Key {
	is := make(map[Key]bool, len(all))
	for _, o := range all {
		is[o.Key] = true
	}
	var gone []Key
	for k, e := range x.entries {
		if e.feed.Name == feed.Name && e.object != nil && !is[k] {
			gone = append(gone, k)
		}
	}
	return gone
}

// set gives an entry its object, or takes it; references follow, and slices of
// a pod that now says something else of their endpoints are touched.
func (x *Index) set(e *entry, feed *Feed, o *Object, seen time.Time) {
	old := e.object
	if old != nil {
		x.held[e.feed.Name]--
		x.refer(e, old, unlink)
	}
	e.feed, e.object = feed, o
	if o != nil {
		x.held[e.feed.Name]++
		x.refer(e, o, link)
	}
	if e.key.Kind != podKind || samePod(old, o) {
		return
	}
	x.touchSlices(reference{namespace: e.key.Namespace, name: e.key.Name}, seen)
	for _, r := range append(isAt(old), isAt(o)...) {
		x.touchSlices(r, seen)
	}
}

// samePod says that endpoints are told the same by two states of a pod.
func samePod(a, b *Object) bool {
	if a == nil || b == nil {
		return false
	}
	p, q := a.Body.(*kubeconv.Pod), b.Body.(*kubeconv.Pod)
	return maps.Equal(p.Labels, q.Labels) && p.ServiceAccount == q.ServiceAccount &&
		p.Node == q.Node && slices.Equal(isAt(a), isAt(b))
}

func (x *Index) refer(e *entry, o *Object, link func(map[reference][]*entry, reference, *entry)) {
	for _, r := range refersTo(o) {
		link(x.slicesOf, r, e)
	}
	for _, r := range isAt(o) {
		link(x.podsAt, r, e)
	}
}

func link(m map[reference][]*entry, r reference, e *entry) { m[r] = append(m[r], e) }

func unlink(m map[reference][]*entry, r reference, e *entry) {
	m[r] = slices.DeleteFunc(m[r], func(other *entry) bool { return other == e })
	if len(m[r]) == 0 {
		delete(m, r)
	}
}

// refersTo are the pods that the endpoints of a slice are, each once.
func refersTo(o *Object) []reference {
	s, ok := o.Body.(*kubeconv.Slice)
	if !ok {
		return nil
	}
	names, addresses := s.References()
	var refs []reference
	for _, name := range once(names) {
		refs = append(refs, reference{namespace: o.Namespace, name: name})
	}
	for _, address := range once(addresses) {
		refs = append(refs, reference{namespace: o.Namespace, address: address})
	}
	return refs
}

// isAt are the addresses that a pod has for itself.
func isAt(o *Object) []reference {
	if o == nil {
		return nil
	}
	p, ok := o.Body.(*kubeconv.Pod)
	if !ok {
		return nil
	}
	var refs []reference
	for _, address := range once(p.OwnAddresses()) {
		refs = append(refs, reference{namespace: o.Namespace, address: address})
	}
	return refs
}

func once(s []string) []string {
	s = slices.Sorted(slices.Values(s))
	return slices.Compact(s)
}

// touch remembers that what is said of an object is to be looked at.
func (x *Index) touch(k Key, seen time.Time) {
	if t, ok := x.touched[k]; !ok || seen.Before(t) {
		x.touched[k] = seen
	}
}

// Changes are what is to be said of what was touched, sorted by key. Kinds by
// which others are converted come first.
func (x *Index) Changes() []watcher.Object {
	var set []watcher.Object
	settle := func(is func(Key) bool) {
		for k, seen := range x.touched {
			if is(k) {
				delete(x.touched, k)
				if o, changed := x.settle(k, seen); changed && (x.covered == nil || x.covered[k.Kind]) {
					set = append(set, o)
				}
			}
		}
	}
	settle(func(k Key) bool { return k.Kind == namespaceKind })
	settle(func(k Key) bool { return k.Kind == nodeKind })
	x.touchNodes()
	settle(func(k Key) bool { return k.Kind == podKind })
	settle(func(Key) bool { return true })
	x.touched = map[Key]time.Time{} // empty, and small: going through one that was large takes its time
	slices.SortFunc(set, func(a, b watcher.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return set
}

// settle compares an object with what was said of it, and touches those that
// are converted by it.
func (x *Index) settle(k Key, seen time.Time) (watcher.Object, bool) {
	e := x.entries[k]
	if e == nil {
		return watcher.Object{}, false
	}
	if k.Kind == namespaceKind {
		x.selectNamespace(e, seen)
	}
	out := watcher.Object{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Observed: seen}
	said := e.said
	if p, f, ok := x.payload(e); ok {
		o, sum := e.object, x.sum(p, e.object.Created)
		out.Value, out.SourceVersion, out.Value.Created, out.Actor, out.Trace = p, o.Version, o.Created, o.Actor, o.Trace
		out.Origin = cmp.Or(o.Origin, origin(e))
		said = said && e.sum == sum
		e.sum = sum
		x.say(e, true, f)
	} else {
		out.Delete, said = true, !said
		out.Origin = origin(e)
		x.say(e, false, Figures{})
	}
	if e.object == nil {
		delete(x.entries, k)
	}
	if !said && k.Kind == nodeKind {
		x.moved[k.Name] = seen
	}
	return out, !said
}

// origin is where to look for an object: what kubectl calls it.
func origin(e *entry) string {
	if e.key.Namespace == "" {
		return e.feed.Resource + "/" + e.key.Name
	}
	return e.feed.Resource + "/" + e.key.Name + " -n " + e.key.Namespace
}

// say notes whether an entry counts, and its figures.
func (x *Index) say(e *entry, counts bool, f Figures) {
	all := x.stats[e.key.Kind]
	all.add(e.figures, -1)
	all.add(f, +1)
	x.stats[e.key.Kind] = all
	e.said, e.figures = counts, f
	// With selectors it may have to be said again.
	if e.object != nil && len(x.selectors) == 0 {
		e.object.Payload.Bytes = nil
	}
}

func (f *Figures) add(g Figures, sign int) {
	f.Objects += sign * g.Objects
	f.Undecoded += sign * g.Undecoded
	f.Podless += sign * g.Podless
}

func (x *Index) sum(p ident.Value, created time.Time) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	_, _ = h.WriteString(p.Type)
	_, _ = h.Write(p.Bytes)
	maphash.WriteComparable(&h, created.UnixNano())
	return h.Sum64()
}

// payload is what the log is to carry of an object; not ok: it is not to be
// there, or not any more.
func (x *Index) payload(e *entry) (p ident.Value, f Figures, ok bool) {
	if e.object == nil || !x.visible(e.key) {
		return p, f, false
	}
	p, ok = e.object.Payload, true
	switch body := e.object.Body.(type) {
	case *kubeconv.Slice:
		p, ok = x.convert(e.key, body)
		names, _ := body.References()
		for _, name := range names {
			if x.Pod(e.key.Namespace, name) == nil {
				f.Podless++
			}
		}
	case *kubeconv.Pod:
		p, ok = x.convert(e.key, body)
	}
	f.Objects = 1
	if p.Type == ident.Undecoded {
		f.Undecoded = 1
	}
	return p, f, ok
}

func (x *Index) convert(k Key, body any) (ident.Value, bool) {
	of, known := kind.ByName(k.Kind)
	if !known { // it has a feed
		return ident.Value{}, false
	}
	c := kubeconv.Converter{Lookup: x}
	return payloadOf(c.Payload(of, body))
}

// touchNodes touches what is converted by the nodes that have changed. They do
// rarely: what is said of a node changes with its labels only.
func (x *Index) touchNodes() {
	if len(x.moved) == 0 {
		return
	}
	for k, e := range x.entries {
		if e.object == nil {
			continue
		}
		switch body := e.object.Body.(type) {
		case *kubeconv.Pod:
			if seen, ok := x.moved[body.Node]; ok {
				x.touch(k, seen)
				// Endpoints may know their node by their pod only.
				x.touchSlices(reference{namespace: k.Namespace, name: k.Name}, seen)
				for _, r := range isAt(e.object) {
					x.touchSlices(r, seen)
				}
			}
		case *kubeconv.Slice:
			var seen time.Time
			if body.IsOn(func(node string) (ok bool) { seen, ok = x.moved[node]; return ok }) {
				x.touch(k, seen)
			}
		}
	}
	clear(x.moved)
}

func (x *Index) touchSlices(r reference, seen time.Time) {
	for _, s := range x.slicesOf[r] {
		x.touch(s.key, seen)
	}
}

// selectNamespace takes in the labels of a namespace.
func (x *Index) selectNamespace(e *entry, seen time.Time) {
	if len(x.selectors) == 0 {
		return
	}
	name := e.key.Name
	is := false
	if e.object != nil {
		of, _ := e.object.Body.(labels.Set)
		is = slices.ContainsFunc(x.selectors, func(s labels.Selector) bool { return s.Matches(of) })
	}
	if is == x.selected[name] {
		return
	}
	if is {
		x.selected[name] = true
	} else {
		delete(x.selected, name)
	}
	for other := range x.entries {
		if other.Namespace == name {
			x.touch(other, seen)
		}
	}
}

// visible says whether an object counts, by its namespace.
func (x *Index) visible(k Key) bool {
	switch {
	case len(x.selectors) == 0:
		return true
	case k.Kind == namespaceKind:
		return x.selected[k.Name]
	}
	return k.Namespace == "" || x.selected[k.Namespace]
}

// Pod implements kubeconv.Lookup.
func (x *Index) Pod(namespace, name string) *kubeconv.Pod {
	return body[*kubeconv.Pod](x, Key{podKind, namespace, name})
}

// PodAt implements kubeconv.Lookup.
func (x *Index) PodAt(namespace, ip string) *kubeconv.Pod {
	at := x.podsAt[reference{namespace: namespace, address: ip}]
	if len(at) != 1 {
		return nil
	}
	p, _ := at[0].object.Body.(*kubeconv.Pod)
	return p
}

// Locality implements kubeconv.Lookup.
func (x *Index) Locality(name string) *registryv1.Locality {
	return body[*registryv1.Locality](x, Key{nodeKind, "", name})
}

func body[T any](x *Index, k Key) (t T) {
	if e := x.entries[k]; e != nil && e.object != nil {
		t, _ = e.object.Body.(T)
	}
	return t
}

// ownEndpoints is the Body of a Service whose endpoints are not the cluster's
// business.
type ownEndpoints struct{}

// Sliceless are the Services whose endpoints are somebody else's business than
// the cluster's, and of which there is no slice.
func (x *Index) Sliceless() []Key {
	var found []Key
	with := map[Key]bool{}
	for k, e := range x.entries {
		if e.object == nil || !x.visible(k) {
			continue
		}
		switch body := e.object.Body.(type) {
		case ownEndpoints:
			found = append(found, k)
		case *kubeconv.Slice:
			with[Key{serviceKind, k.Namespace, body.Service()}] = true
		}
	}
	return slices.DeleteFunc(found, func(k Key) bool { return with[k] })
}
