// Package index holds the converted objects of a Kubernetes cluster and computes
// the changes to report when objects arrive. It does no IO.
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

// Kinds that this package treats specially.
const (
	ServiceKind   = "Service"
	SliceKind     = "EndpointSlice"
	PodKind       = "Pod"
	NodeKind      = "Node"
	NamespaceKind = "Namespace"
)

// Index holds the objects of all feeds and the state that was reported of them. It
// is not safe for concurrent use.
type Index struct {
	selectors []labels.Selector // of namespaces; empty selects all
	entries   map[Key]*entry
	touched   map[Key]time.Time // entries to compare, and when their cause arrived
	selected  map[string]bool   // namespaces that match a selector
	// slicesOf has the slices that refer to a pod, known or not; podsAt has the pods
	// with an address of their own.
	slicesOf, podsAt map[reference][]*entry
	// moved has the changed nodes whose pods and slices are not touched yet.
	moved   map[string]time.Time
	covered map[string]bool // kinds to report; nil means all
	seed    maphash.Seed

	held  map[string]int64 // number of objects, by name of the feed
	stats map[string]Figures
}

// reference is a slice's reference to a pod of its namespace, by name or address.
type reference struct{ namespace, name, address string }

// entry is an object of the cluster. A nil object is gone, and its deletion is still
// to be reported.
type entry struct {
	key      Key
	feed     *Feed
	object   *Object
	reported bool   // the object was reported as existing
	sum      uint64 // hash of the reported content
	figures  Figures
}

// Figures count the reported objects of a kind.
type Figures struct {
	Objects, Undecoded int
	Podless            int // endpoints with an unknown pod
}

// Feed is a source of objects.
type Feed struct {
	Name string // unique
	// Resource is the name that kubectl uses.
	Resource string
}

// New returns an empty index. If there are selectors, objects in namespaces that
// match none of them are ignored.
func New(selectors []labels.Selector) *Index {
	return &Index{
		selectors: selectors, seed: maphash.MakeSeed(),
		entries: map[Key]*entry{}, touched: map[Key]time.Time{}, selected: map[string]bool{},
		slicesOf: map[reference][]*entry{}, podsAt: map[reference][]*entry{},
		moved: map[string]time.Time{}, held: map[string]int64{}, stats: map[string]Figures{},
	}
}

// Cover limits later results of Changes to these kinds.
func (x *Index) Cover(kinds map[string]bool) { x.covered = kinds }

// Held returns the number of a feed's objects.
func (x *Index) Held(feed *Feed) int64 { return x.held[feed.Name] }

// Figures returns the figures by kind, which the caller must not change.
func (x *Index) Figures() map[string]Figures { return x.stats }

// Put adds or replaces an object.
func (x *Index) Put(feed *Feed, o *Object) {
	e := x.entries[o.Key]
	if e == nil {
		e = &entry{key: o.Key}
		x.entries[o.Key] = e
	}
	x.set(e, feed, o, o.Seen)
	x.touch(o.Key, o.Seen)
}

// Remove removes an object.
func (x *Index) Remove(k Key, seen time.Time) {
	if e := x.entries[k]; e != nil {
		x.set(e, e.feed, nil, seen)
		x.touch(k, seen)
	}
}

// Replace replaces all objects of a feed.
func (x *Index) Replace(feed *Feed, all []*Object, seen time.Time) {
	for _, k := range x.Missing(feed, all) {
		x.Remove(k, seen)
	}
	for _, o := range all {
		x.Put(feed, o)
	}
}

// Missing returns the keys of a feed's objects that are not in all.
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

// set sets or (nil) removes an entry's object and updates the references. If a pod
// changes in a way that affects its endpoints, set touches their slices.
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
	if e.key.Kind != PodKind || samePod(old, o) {
		return
	}
	x.touchSlices(reference{namespace: e.key.Namespace, name: e.key.Name}, seen)
	for _, r := range append(isAt(old), isAt(o)...) {
		x.touchSlices(r, seen)
	}
}

// samePod reports whether two states of a pod result in the same endpoints.
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

// refersTo returns the references of a slice's endpoints to pods, each once.
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

// isAt returns the addresses that a pod does not share with its node.
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

func once(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }

// touch marks an object for comparison.
func (x *Index) touch(k Key, seen time.Time) {
	if t, ok := x.touched[k]; !ok || seen.Before(t) {
		x.touched[k] = seen
	}
}

// Changes compares all touched objects and returns the changes, sorted by key. It
// settles kinds first that others are converted with.
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
	settle(func(k Key) bool { return k.Kind == NamespaceKind })
	settle(func(k Key) bool { return k.Kind == NodeKind })
	x.touchNodes()
	settle(func(k Key) bool { return k.Kind == PodKind })
	settle(func(Key) bool { return true })
	x.touched = map[Key]time.Time{} // a new map, because iterating over one that was large is slow
	slices.SortFunc(set, watcher.Object.Compare)
	return set
}

// settle compares an object with its reported state, updates that state, and
// returns the change. It records the objects that depend on this one for a later
// round. ok is false if there is no change.
func (x *Index) settle(k Key, seen time.Time) (watcher.Object, bool) {
	e := x.entries[k]
	if e == nil {
		return watcher.Object{}, false
	}
	if k.Kind == NamespaceKind {
		x.selectNamespace(e, seen)
	}
	out := watcher.Object{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Observed: seen}
	unchanged := e.reported
	if p, f, ok := x.payload(e); ok {
		o, sum := e.object, x.sum(p, e.object.Created)
		out.Value, out.SourceVersion, out.Value.Created, out.Actor, out.Trace = p, o.Version, o.Created, o.Actor, o.Trace
		out.Origin = cmp.Or(o.Origin, origin(e))
		unchanged = unchanged && e.sum == sum
		e.sum = sum
		x.setReported(e, true, f)
	} else {
		out.Delete, unchanged = true, !unchanged
		out.Origin = origin(e)
		x.setReported(e, false, Figures{})
	}
	if e.object == nil {
		delete(x.entries, k)
	}
	if !unchanged && k.Kind == NodeKind {
		x.moved[k.Name] = seen
	}
	return out, !unchanged
}

// origin returns an object's name for kubectl.
func origin(e *entry) string {
	if e.key.Namespace == "" {
		return e.feed.Resource + "/" + e.key.Name
	}
	return e.feed.Resource + "/" + e.key.Name + " -n " + e.key.Namespace
}

// setReported records whether an entry is reported as existing, and its figures.
func (x *Index) setReported(e *entry, counts bool, f Figures) {
	all := x.stats[e.key.Kind]
	all.add(e.figures, -1)
	all.add(f, +1)
	x.stats[e.key.Kind] = all
	e.reported, e.figures = counts, f
	// With selectors the object may have to be reported again.
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

// payload returns the content to publish for an object. ok is false if the object
// must not be on the log.
func (x *Index) payload(e *entry) (p ident.Value, f Figures, ok bool) {
	if e.object == nil || !x.visible(e.key) {
		return p, f, false
	}
	p, ok = e.object.Payload, true
	if p.Type == "" { // a Pod or a Slice
		p, ok = x.convert(e.key, e.object.Body)
	}
	if slice, is := e.object.Body.(*kubeconv.Slice); is {
		names, _ := slice.References()
		for _, name := range names {
			if x.Pod(e.key.Namespace, name) == nil {
				f.Podless++
			}
		}
	}
	f.Objects = 1
	if p.Type == ident.Undecoded {
		f.Undecoded = 1
	}
	return p, f, ok
}

func (x *Index) convert(k Key, body any) (ident.Value, bool) {
	of, _ := kind.ByName(k.Kind) // known, because it has a feed
	c := kubeconv.Converter{Lookup: x}
	return c.Payload(of, body)
}

// touchNodes touches the pods and slices on changed nodes. It goes through all
// entries, but nodes change rarely: only their labels count.
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
				// An endpoint may get its node from its pod.
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

// selectNamespace applies the selectors to a namespace.
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

// visible reports whether the selectors include an object.
func (x *Index) visible(k Key) bool {
	switch {
	case len(x.selectors) == 0:
		return true
	case k.Kind == NamespaceKind:
		return x.selected[k.Name]
	}
	return k.Namespace == "" || x.selected[k.Namespace]
}

// Pod implements kubeconv.Lookup.
func (x *Index) Pod(namespace, name string) *kubeconv.Pod {
	return body[*kubeconv.Pod](x, Key{PodKind, namespace, name})
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
	return body[*registryv1.Locality](x, Key{NodeKind, "", name})
}

func body[T any](x *Index, k Key) (t T) {
	if e := x.entries[k]; e != nil && e.object != nil {
		t, _ = e.object.Body.(T)
	}
	return t
}

// ownEndpoints is the Body of a Service without a selector.
type ownEndpoints struct{}

// Sliceless returns the Services without a selector that have no slice.
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
			with[Key{ServiceKind, k.Namespace, body.Service()}] = true
		}
	}
	return slices.DeleteFunc(found, func(k Key) bool { return with[k] })
}
