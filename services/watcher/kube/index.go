package kube

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"meshlog.dev/events"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/kubeconv"
	"meshlog.dev/services/watcher"
)

// Names of kinds that are treated in their own way.
const (
	serviceKind      = "Service"
	sliceKind        = "EndpointSlice"
	podKind          = "Pod"
	nodeKind         = "Node"
	namespaceKind    = "Namespace"
	secretKind       = "Secret"
	configMapKind    = "ConfigMap"
	meshConfigKind   = "MeshConfig"
	meshNetworksKind = "MeshNetworks"
)

// index is what the feeds say together, and what of it has been said. One
// goroutine uses it; it does no IO.
type index struct {
	selectors []labels.Selector // of namespaces; none: all count
	entries   map[key]*entry
	touched   map[key]time.Time // since changes was asked: when that was seen
	selected  map[string]bool   // namespaces that match a selector
	// slicesOf are the slices that refer to a pod, known or not; podsAt are the
	// pods that have an address for themselves.
	slicesOf, podsAt map[reference][]*entry
	// moved are the nodes that have changed, and what is converted by them was
	// not touched yet.
	moved map[string]time.Time
	// covered are the kinds that are spoken of; nil: all.
	covered map[string]bool
	seed    maphash.Seed

	// held is how many objects a feed has; stats are figures by kind.
	held  map[string]int64
	stats map[string]figures
}

// reference is how a slice names a pod of its namespace: by name, or by address.
type reference struct{ namespace, name, address string }

// entry is an object of the cluster, or (object nil) one that is gone and is
// still to be said so.
type entry struct {
	key    key
	feed   string
	object *object
	said   bool
	sum    uint64 // of what was said
	figures
}

// figures are about an object, or about all of a kind that have been said.
type figures struct {
	objects, undecoded int
	podless            int // endpoints whose pod is not known
}

func newIndex(selectors []labels.Selector) *index {
	return &index{
		selectors: selectors, seed: maphash.MakeSeed(),
		entries: map[key]*entry{}, touched: map[key]time.Time{}, selected: map[string]bool{},
		slicesOf: map[reference][]*entry{}, podsAt: map[reference][]*entry{},
		moved: map[string]time.Time{}, held: map[string]int64{}, stats: map[string]figures{},
	}
}

// put takes in an object that is new or has changed.
func (x *index) put(feed string, o *object) {
	e := x.entries[o.key]
	if e == nil {
		e = &entry{key: o.key}
		x.entries[o.key] = e
	}
	x.set(e, feed, o, o.seen)
	x.touch(o.key, o.seen)
}

// remove takes in that an object is gone.
func (x *index) remove(k key, seen time.Time) {
	if e := x.entries[k]; e != nil {
		x.set(e, e.feed, nil, seen)
		x.touch(k, seen)
	}
}

// replace takes in all that a feed holds.
func (x *index) replace(feed string, all []*object, seen time.Time) {
	for _, k := range x.missing(feed, all) {
		x.remove(k, seen)
	}
	for _, o := range all {
		x.put(feed, o)
	}
}

// missing are the objects of a feed that are not in a list of all it holds.
func (x *index) missing(feed string, all []*object) []key {
	is := make(map[key]bool, len(all))
	for _, o := range all {
		is[o.key] = true
	}
	var gone []key
	for k, e := range x.entries {
		if e.feed == feed && e.object != nil && !is[k] {
			gone = append(gone, k)
		}
	}
	return gone
}

// set gives an entry its object, or takes it; references follow, and slices of
// a pod that now says something else of their endpoints are touched.
func (x *index) set(e *entry, feed string, o *object, seen time.Time) {
	old := e.object
	if old != nil {
		x.held[e.feed]--
		x.refer(e, old, unlink)
	}
	e.feed, e.object = feed, o
	if o != nil {
		x.held[e.feed]++
		x.refer(e, o, link)
	}
	if e.key.kind != podKind || samePod(old, o) {
		return
	}
	x.touchSlices(reference{namespace: e.key.namespace, name: e.key.name}, seen)
	for _, r := range append(isAt(old), isAt(o)...) {
		x.touchSlices(r, seen)
	}
}

// samePod says that endpoints are told the same by two states of a pod.
func samePod(a, b *object) bool {
	if a == nil || b == nil {
		return false
	}
	p, q := a.body.(*kubeconv.Pod), b.body.(*kubeconv.Pod)
	return maps.Equal(p.Labels, q.Labels) && p.ServiceAccount == q.ServiceAccount &&
		p.Node == q.Node && slices.Equal(isAt(a), isAt(b))
}

func (x *index) refer(e *entry, o *object, link func(map[reference][]*entry, reference, *entry)) {
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
func refersTo(o *object) []reference {
	s, ok := o.body.(*kubeconv.Slice)
	if !ok {
		return nil
	}
	names, addresses := s.References()
	var refs []reference
	for _, name := range once(names) {
		refs = append(refs, reference{namespace: o.namespace, name: name})
	}
	for _, address := range once(addresses) {
		refs = append(refs, reference{namespace: o.namespace, address: address})
	}
	return refs
}

// isAt are the addresses that a pod has for itself.
func isAt(o *object) []reference {
	if o == nil {
		return nil
	}
	p, ok := o.body.(*kubeconv.Pod)
	if !ok {
		return nil
	}
	var refs []reference
	for _, address := range once(p.OwnAddresses()) {
		refs = append(refs, reference{namespace: o.namespace, address: address})
	}
	return refs
}

func once(s []string) []string {
	s = slices.Sorted(slices.Values(s))
	return slices.Compact(s)
}

// touch remembers that what is said of an object is to be looked at.
func (x *index) touch(k key, seen time.Time) {
	if t, ok := x.touched[k]; !ok || seen.Before(t) {
		x.touched[k] = seen
	}
}

// changes are what is to be said of what was touched, sorted by key. Kinds by
// which others are converted come first.
func (x *index) changes() []watcher.Object {
	var set []watcher.Object
	settle := func(is func(key) bool) {
		for k, seen := range x.touched {
			if is(k) {
				delete(x.touched, k)
				if o, changed := x.settle(k, seen); changed && (x.covered == nil || x.covered[k.kind]) {
					set = append(set, o)
				}
			}
		}
	}
	settle(func(k key) bool { return k.kind == namespaceKind })
	settle(func(k key) bool { return k.kind == nodeKind })
	x.touchNodes()
	settle(func(k key) bool { return k.kind == podKind })
	settle(func(key) bool { return true })
	x.touched = map[key]time.Time{} // empty, and small: going through one that was large takes its time
	slices.SortFunc(set, func(a, b watcher.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return set
}

// settle compares an object with what was said of it, and touches those that
// are converted by it.
func (x *index) settle(k key, seen time.Time) (watcher.Object, bool) {
	e := x.entries[k]
	if e == nil {
		return watcher.Object{}, false
	}
	if k.kind == namespaceKind {
		x.selectNamespace(e, seen)
	}
	out := watcher.Object{Kind: k.kind, Namespace: k.namespace, Name: k.name, Observed: seen}
	said := e.said
	if p, f, ok := x.payload(e); ok {
		o, sum := e.object, x.sum(p, e.object.created)
		out.Payload, out.SourceVersion, out.Created, out.Actor, out.Trace = p, o.version, o.created, o.actor, o.trace
		out.Origin = cmp.Or(o.origin, x.origin(e))
		said = said && e.sum == sum
		e.sum = sum
		x.say(e, true, f)
	} else {
		out.Delete, said = true, !said
		out.Origin = x.origin(e)
		x.say(e, false, figures{})
	}
	if e.object == nil {
		delete(x.entries, k)
	}
	if !said && k.kind == nodeKind {
		x.moved[k.name] = seen
	}
	return out, !said
}

// origin is where to look for an object: what kubectl calls it.
func (x *index) origin(e *entry) string {
	_, resource, _ := strings.Cut(e.feed, " ")
	resource, _, _ = strings.Cut(resource, "/")
	if e.key.namespace == "" {
		return resource + "/" + e.key.name
	}
	return resource + "/" + e.key.name + " -n " + e.key.namespace
}

// say notes whether an entry counts, and its figures.
func (x *index) say(e *entry, counts bool, f figures) {
	all := x.stats[e.key.kind]
	all.add(e.figures, -1)
	all.add(f, +1)
	x.stats[e.key.kind] = all
	e.said, e.figures = counts, f
	// With selectors it may have to be said again.
	if e.object != nil && len(x.selectors) == 0 {
		e.object.payload.Bytes = nil
	}
}

func (f *figures) add(g figures, sign int) {
	f.objects += sign * g.objects
	f.undecoded += sign * g.undecoded
	f.podless += sign * g.podless
}

func (x *index) sum(p events.Payload, created time.Time) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	_, _ = h.WriteString(p.Type)
	_, _ = h.Write(p.Bytes)
	maphash.WriteComparable(&h, created.UnixNano())
	return h.Sum64()
}

// payload is what the log is to carry of an object; not ok: it is not to be
// there, or not any more.
func (x *index) payload(e *entry) (p events.Payload, f figures, ok bool) {
	if e.object == nil || !x.visible(e.key) {
		return p, f, false
	}
	p, ok = e.object.payload, true
	switch body := e.object.body.(type) {
	case *kubeconv.Slice:
		p, ok = x.convert(e.key, body)
		names, _ := body.References()
		for _, name := range names {
			if x.Pod(e.key.namespace, name) == nil {
				f.podless++
			}
		}
	case *kubeconv.Pod:
		p, ok = x.convert(e.key, body)
	}
	f.objects = 1
	if p.Type == kind.Undecoded {
		f.undecoded = 1
	}
	return p, f, ok
}

func (x *index) convert(k key, body any) (events.Payload, bool) {
	of, known := kind.ByName(k.kind)
	if !known { // it has a feed
		return events.Payload{}, false
	}
	c := kubeconv.Converter{Lookup: x}
	return payloadOf(c.Payload(of, body))
}

// touchNodes touches what is converted by the nodes that have changed. They do
// rarely: what is said of a node changes with its labels only.
func (x *index) touchNodes() {
	if len(x.moved) == 0 {
		return
	}
	for k, e := range x.entries {
		if e.object == nil {
			continue
		}
		switch body := e.object.body.(type) {
		case *kubeconv.Pod:
			if seen, ok := x.moved[body.Node]; ok {
				x.touch(k, seen)
				// Endpoints may know their node by their pod only.
				x.touchSlices(reference{namespace: k.namespace, name: k.name}, seen)
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

func (x *index) touchSlices(r reference, seen time.Time) {
	for _, s := range x.slicesOf[r] {
		x.touch(s.key, seen)
	}
}

// selectNamespace takes in the labels of a namespace.
func (x *index) selectNamespace(e *entry, seen time.Time) {
	if len(x.selectors) == 0 {
		return
	}
	name := e.key.name
	is := false
	if e.object != nil {
		of, _ := e.object.body.(labels.Set)
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
		if other.namespace == name {
			x.touch(other, seen)
		}
	}
}

// visible says whether an object counts, by its namespace.
func (x *index) visible(k key) bool {
	switch {
	case len(x.selectors) == 0:
		return true
	case k.kind == namespaceKind:
		return x.selected[k.name]
	}
	return k.namespace == "" || x.selected[k.namespace]
}

// Pod implements kubeconv.Lookup.
func (x *index) Pod(namespace, name string) *kubeconv.Pod {
	return body[*kubeconv.Pod](x, key{podKind, namespace, name})
}

// PodAt implements kubeconv.Lookup.
func (x *index) PodAt(namespace, ip string) *kubeconv.Pod {
	at := x.podsAt[reference{namespace: namespace, address: ip}]
	if len(at) != 1 {
		return nil
	}
	p, _ := at[0].object.body.(*kubeconv.Pod)
	return p
}

// Locality implements kubeconv.Lookup.
func (x *index) Locality(name string) *registryv1.Locality {
	return body[*registryv1.Locality](x, key{nodeKind, "", name})
}

func body[T any](x *index, k key) (t T) {
	if e := x.entries[k]; e != nil && e.object != nil {
		t, _ = e.object.body.(T)
	}
	return t
}
