// Package meshtest makes small worlds for tests from raw Envoy resources, services
// and endpoints, and objects written as YAML.
package meshtest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/world"
)

// Change puts or removes one object, one quarantine or one pin.
type Change struct {
	key     ident.Key
	message proto.Message // nil: removed
	created time.Time

	quarantine string // its id; empty: this is an object
	overlay    []byte // nil: removed
}

// Quarantine puts a quarantine of a resource for the clients of that name and
// version. They get good instead; nil: nothing.
func Quarantine(id, client string, t ident.ResourceType, resource string, sum [16]byte, good proto.Message) Change {
	v := ident.OverlayValue{Resource: &ident.Resource{Rejected: ident.Rejected{Type: t.URL(), Name: resource, Sum: sum, Client: client}}}
	if good != nil {
		v.Value = &ident.Value{Type: t.URL(), Bytes: marshal(good)}
	}
	return Change{quarantine: id, overlay: world.MarshalOverlay(world.Overlay{
		Kind: ident.Quarantine, Reason: "it cannot be used", Values: []ident.OverlayValue{v},
	})}
}

// Pin keeps proxies on objects as changes put or remove them.
func Pin(id string, observed time.Time, proxies ident.Proxies, as ...Change) Change {
	o := world.Overlay{Kind: ident.Pin, Reason: "they wait", Observed: observed, Proxies: &proxies}
	for _, c := range as {
		v := ident.OverlayValue{Key: c.key}
		if c.message != nil {
			v.Value = &ident.Value{Type: typePrefix + string(c.message.ProtoReflect().Descriptor().FullName()), Bytes: marshal(c.message), Created: c.created}
		}
		o.Values = append(o.Values, v)
	}
	return Change{quarantine: id, overlay: world.MarshalOverlay(o)}
}

// Put puts an Envoy resource for every proxy, as the object of that name.
func Put(object string, resource proto.Message) Change {
	return PutFor(object, nil, resource)
}

// PutFor puts an Envoy resource for the proxies that match.
func PutFor(object string, nodes *configv1.NodeSelector, resource proto.Message) Change {
	a, err := anypb.New(resource)
	if err != nil {
		panic(err)
	}
	return Change{key: Key(object), message: &configv1.Resource{Nodes: nodes, Resource: a}}
}

// At returns the change with a creation time.
func (c Change) At(created time.Time) Change {
	c.created = created
	return c
}

// From returns the change for another source.
func (c Change) From(source string) Change {
	c.key.Source = source
	return c
}

// In returns the change for another instance of its source, such as another
// cluster.
func (c Change) In(instance string) Change {
	c.key.Instance = instance
	return c
}

// Gone returns the removal of the change's object.
func (c Change) Gone() Change {
	c.message, c.created, c.overlay = nil, time.Time{}, nil
	return c
}

// Key returns the key of the change's object.
func (c Change) Key() ident.Key { return c.key }

// Remove removes the Resource of that name.
func Remove(object string) Change { return Change{key: Key(object)} }

// Key returns the key of the Resource of that name, in the root namespace, whose
// resources reach every proxy.
func Key(object string) ident.Key {
	return ident.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: "istio-system", Name: object}
}

// Row returns the change of the row of content.
func (c Change) Row() world.RowChange {
	if c.quarantine != "" {
		return world.RowChange{Row: ident.OverlayRow(c.quarantine), Value: c.overlay}
	}
	row := world.RowChange{Row: c.key.Row()}
	if c.message != nil {
		row.Value = world.MarshalValue(ident.Value{
			Type: typePrefix + string(c.message.ProtoReflect().Descriptor().FullName()), Bytes: marshal(c.message), Created: c.created,
		})
	}
	return row
}

const typePrefix = "type.googleapis.com/"

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// Rows returns the rows of changes.
func Rows(changes ...Change) world.Change {
	var c world.Change
	for _, change := range changes {
		c.Rows = append(c.Rows, change.Row())
	}
	return c
}

// Group selects the nodes of a cluster.
func Group(cluster string) *configv1.NodeSelector { return &configv1.NodeSelector{Cluster: cluster} }

// PushContext returns the index of a world of changes.
func PushContext(t testing.TB, changes ...Change) *index.PushContext {
	t.Helper()
	return index.NewPushContext(World(t, changes...))
}

// World returns a world of changes.
func World(t testing.TB, changes ...Change) *world.World {
	t.Helper()
	w, _, err := world.NewWorld().Apply(Rows(changes...))
	if err != nil {
		t.Fatal(fmt.Errorf("world: %w", err))
	}
	return w
}
