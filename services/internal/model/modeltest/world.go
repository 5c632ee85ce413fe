// Package modeltest makes small worlds of raw Envoy resources for tests.
package modeltest

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/model"
)

// Change is one object that is put, or removed.
type Change struct {
	key      model.Key
	resource *configv1.Resource // nil: removed
	created  time.Time
}

// Put gives an Envoy resource to every proxy, as the object of that name.
func Put(object string, resource proto.Message) Change {
	return PutFor(object, nil, resource)
}

// PutFor gives an Envoy resource to the proxies that match.
func PutFor(object string, nodes *configv1.NodeSelector, resource proto.Message) Change {
	a, err := anypb.New(resource)
	if err != nil {
		panic(err)
	}
	return Change{key: Key(object), resource: &configv1.Resource{Nodes: nodes, Resource: a}}
}

// At is the change with a creation time.
func (c Change) At(created time.Time) Change {
	c.created = created
	return c
}

// From is the change as another source's.
func (c Change) From(source string) Change {
	c.key.Source = source
	return c
}

// Remove removes the object of that name.
func Remove(object string) Change { return Change{key: Key(object)} }

// Key is the key of the object of that name.
func Key(object string) model.Key {
	return model.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: "default", Name: object}
}

// Row is the change of a row of content.
func (c Change) Row() model.RowChange {
	row := model.RowChange{Row: c.key.Row()}
	if c.resource != nil {
		row.Value = model.MarshalValue(model.Value{
			Type: "type.googleapis.com/meshlog.config.v1.Resource", Bytes: marshal(c.resource), Created: c.created,
		})
	}
	return row
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// Rows is what changes mean for a world.
func Rows(changes ...Change) model.Change {
	var c model.Change
	for _, change := range changes {
		c.Rows = append(c.Rows, change.Row())
	}
	return c
}

// Group selects the nodes of a cluster.
func Group(cluster string) *configv1.NodeSelector { return &configv1.NodeSelector{Cluster: cluster} }

// PushContext is the world of those objects, indexed.
func PushContext(t testing.TB, changes ...Change) *model.PushContext {
	t.Helper()
	w, _, err := model.NewWorld().Apply(Rows(changes...))
	if err != nil {
		t.Fatal(fmt.Errorf("world: %w", err))
	}
	return model.NewPushContext(w)
}

// Row is the row of the object of that name.
func Row(object string, r *configv1.Resource) model.RowChange {
	return Change{key: Key(object), resource: r}.Row()
}

// Policy is the row of the MeshPolicy that counts.
func Policy(p *configv1.MeshPolicy) model.RowChange {
	key := model.Key{Source: "file", Instance: "default", Kind: "MeshPolicy", Name: "default"}
	return model.RowChange{Row: key.Row(), Value: model.MarshalValue(model.Value{
		Type: "type.googleapis.com/meshlog.config.v1.MeshPolicy", Bytes: marshal(p),
	})}
}
