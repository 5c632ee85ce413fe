package index

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// resourceKind is the kind of raw Envoy resources.
const resourceKind = "Resource"

// rawIndex holds the raw Envoy resources by the proxies that get them.
type rawIndex struct {
	byKey     table.Table[ident.Key, *RawResource]
	names     table.Table[nameKey, []*RawResource] // the winner first
	cells     map[cellKey]*cell
	selectors []*Selector // of the cells, sorted by text
}

// RawResource is an Envoy resource from an object.
type RawResource struct {
	Key      ident.Key
	Created  time.Time
	Type     ident.ResourceType
	Name     string // Envoy's name of it
	Selector *Selector
	Value    []byte   // as on the log; must not be changed
	Hash     [32]byte // SHA-256 of Value
}

type (
	nameKey struct {
		Type ident.ResourceType
		Name string
	}
	cellKey struct {
		Type     ident.ResourceType
		Selector string
	}
	// cell holds the raw resources of one type and selector, sorted by name, the
	// winner of each name.
	cell struct{ resources []*RawResource }
)

func newRawIndex() rawIndex {
	return rawIndex{
		byKey: table.New[ident.Key, *RawResource](table.HashKey),
		names: table.New[nameKey, []*RawResource](hashNameKey),
		cells: make(map[cellKey]*cell),
	}
}

// list returns the resources of a type and selector.
func (x *rawIndex) list(t ident.ResourceType, selector string) []*RawResource {
	if c := x.cells[cellKey{t, selector}]; c != nil {
		return c.resources
	}
	return nil
}

func (x *rawIndex) one(t ident.ResourceType, selector, name string) *RawResource {
	list := x.list(t, selector)
	i, ok := slices.BinarySearchFunc(list, name, func(r *RawResource, name string) int { return strings.Compare(r.Name, name) })
	if !ok {
		return nil
	}
	return list[i]
}

func (s *settings) compareRaw(a, b *RawResource) int {
	return world.Wins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

func hashNameKey(k nameKey) uint64 { return table.HashStrings(k.Type.String(), k.Name) }

// newRawResource reads a raw resource.
func newRawResource(o world.Object) (*RawResource, error) {
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

func envoyName(m proto.Message) (ident.ResourceType, string, bool) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return ident.CDS, m.GetName(), true
	case *endpointv3.ClusterLoadAssignment:
		return ident.EDS, m.GetClusterName(), true
	case *listenerv3.Listener:
		return ident.LDS, m.GetName(), true
	case *routev3.RouteConfiguration:
		return ident.RDS, m.GetName(), true
	}
	return 0, "", false
}
