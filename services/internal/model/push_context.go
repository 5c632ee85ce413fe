package model

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

// resourceKind is the kind of raw Envoy resources.
const resourceKind = "Resource"

// PushContext is the world as generation reads it: indexed, and immutable. A
// successor shares with it what did not change.
type PushContext struct {
	priority     []string // of sources, as the policy says
	mesh         *meshconfig.MeshConfig
	domainSuffix string

	raw       table[Key, *RawResource]
	names     table[nameKey, []*RawResource] // the one that wins first
	cells     map[cellKey]*cell
	selectors []*Selector // of the cells, sorted by text
	// problems by what they are about: objects that cannot be read, and
	// resources that lose their name.
	unread    map[Key]Diagnostic
	conflicts map[nameKey][]Diagnostic
}

// RawResource is an Envoy resource as its object gives it.
type RawResource struct {
	Key      Key
	Created  time.Time
	Type     ResourceType
	Name     string // Envoy's name of it
	Selector *Selector
	Value    []byte   // as on the log; must not be changed
	Hash     [32]byte // SHA-256 of Value
}

type (
	nameKey struct {
		Type ResourceType
		Name string
	}
	cellKey struct {
		Type     ResourceType
		Selector string
	}
	// cell is the raw resources of one type and selector, sorted by name, the
	// winning one of each name.
	cell struct{ resources []*RawResource }
)

// NewPushContext indexes the whole world.
func NewPushContext(w *World) *PushContext {
	var keys []Key
	for o := range w.Objects(resourceKind) {
		keys = append(keys, o.Key)
	}
	empty := &PushContext{
		priority: w.Policy().SourcePriority,
		mesh:     w.MeshConfig(), domainSuffix: w.Policy().DomainSuffix,
		raw:   newTable[Key, *RawResource](hashKey),
		names: newTable[nameKey, []*RawResource](hashNameKey),
	}
	pc, _ := empty.next(w, keys)
	return pc
}

// Next is the PushContext of w, which came from pc's world by a change of
// these keys, and the inputs that differ, sorted.
func (pc *PushContext) Next(w *World, changed []Key) (*PushContext, []Input) {
	if !slices.Equal(pc.priority, w.Policy().SourcePriority) {
		// Who wins may differ anywhere.
		next := NewPushContext(w)
		return next, pc.inputs(next)
	}
	return pc.next(w, changed)
}

func (pc *PushContext) next(w *World, changed []Key) (*PushContext, []Input) {
	e := &pushEdit{
		from: pc, raw: pc.raw.edit(), names: pc.names.edit(),
		unread: cloneMap(pc.unread), touched: map[nameKey]bool{}, cells: map[cellKey]map[string]bool{},
	}
	for _, k := range changed {
		if k.Kind == resourceKind {
			e.change(w, k)
		}
	}
	return e.done()
}

// Raw returns the raw resources of type t that are selected by the selector of
// that text, sorted by name, without those that lose their name to another of
// the same selector. The result must not be changed.
func (pc *PushContext) Raw(in Input) []*RawResource {
	if c := pc.cells[cellKey{ResourceType(in.Kind - InputRaw), in.A}]; c != nil {
		return c.resources
	}
	return nil
}

// Before says whether a wins over b where only one of two can be: by source
// priority, then the older one, then by name, then by shard.
func (pc *PushContext) Before(a, b *RawResource) bool { return pc.compare(a, b) < 0 }

// SameSelectors says whether no proxy can be of another class in o than in pc.
func (pc *PushContext) SameSelectors(o *PushContext) bool {
	return pc == o || len(pc.cells) == len(o.cells) && len(pc.selectors) == len(o.selectors) &&
		(len(pc.selectors) == 0 || &pc.selectors[0] == &o.selectors[0])
}

// Diagnostics are about raw resources that are not served to everyone they
// select. Sorted.
func (pc *PushContext) Diagnostics() []Diagnostic {
	var all []Diagnostic
	for _, d := range pc.unread {
		all = append(all, d)
	}
	for _, ds := range pc.conflicts {
		all = append(all, ds...)
	}
	slices.SortFunc(all, Diagnostic.Compare)
	return all
}

// inputs is all inputs of pc and o.
func (pc *PushContext) inputs(o *PushContext) []Input {
	var all []Input
	for k := range pc.cells {
		all = append(all, RawInput(k.Type, k.Selector))
	}
	for k := range o.cells {
		if _, both := pc.cells[k]; !both {
			all = append(all, RawInput(k.Type, k.Selector))
		}
	}
	slices.SortFunc(all, compareInputs)
	return all
}

func (pc *PushContext) compare(a, b *RawResource) int {
	return wins(pc.priority, a.Key, a.Created, b.Key, b.Created)
}

func hashNameKey(k nameKey) uint64 { return hashStrings(k.Type.String(), k.Name) }

// newRawResource reads a raw resource from its object.
func newRawResource(o Object) (*RawResource, error) {
	spec, ok := o.Message.(*configv1.Resource)
	if !ok {
		return nil, fmt.Errorf("holds %T", o.Message)
	}
	message, err := spec.GetResource().UnmarshalNew()
	if err != nil {
		return nil, err
	}
	t, name, ok := envoyName(message)
	if !ok {
		return nil, fmt.Errorf("type %s is not served", spec.GetResource().GetTypeUrl())
	}
	selector, err := newSelector(spec.GetNodes())
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	value := spec.GetResource().GetValue()
	return &RawResource{
		Key: o.Key, Created: o.Created, Type: t, Name: name, Selector: selector,
		Value: value, Hash: sha256.Sum256(value),
	}, nil
}

func envoyName(m proto.Message) (ResourceType, string, bool) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return CDS, m.GetName(), true
	case *endpointv3.ClusterLoadAssignment:
		return EDS, m.GetClusterName(), true
	case *listenerv3.Listener:
		return LDS, m.GetName(), true
	case *routev3.RouteConfiguration:
		return RDS, m.GetName(), true
	}
	return 0, "", false
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}
