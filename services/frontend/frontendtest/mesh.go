// Package frontendtest publishes small worlds of raw Envoy resources for tests
// of the frontend.
package frontendtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// Mesh is a world, published version by version on a chain in memory.
type Mesh struct {
	Chain *memstore.Chain

	t        testing.TB
	epoch    uint64
	last     store.Stored
	sequence uint64
}

// NewMesh returns a mesh without a version.
func NewMesh(t testing.TB) *Mesh {
	return &Mesh{Chain: memstore.NewChain(), t: t, epoch: 1}
}

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
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.resource)
		if err != nil {
			panic(err)
		}
		row.Value = model.MarshalValue(model.Value{
			Type: "type.googleapis.com/meshlog.config.v1.Resource", Bytes: b, Created: c.created,
		})
	}
	return row
}

// Rows is what changes mean for a world.
func Rows(changes ...Change) model.Change {
	var c model.Change
	for _, change := range changes {
		c.Rows = append(c.Rows, change.Row())
	}
	return c
}

// Publish makes the next version.
func (m *Mesh) Publish(changes ...Change) store.Version {
	m.t.Helper()
	rows := make([]model.RowChange, len(changes))
	for i, c := range changes {
		rows[i] = c.Row()
	}
	return m.PublishRows(rows...)
}

// PublishRows makes the next version out of rows.
func (m *Mesh) PublishRows(rows ...model.RowChange) store.Version {
	m.t.Helper()
	var d store.Delta
	for _, r := range rows {
		if r.Value == nil {
			d.Remove = append(d.Remove, r.Row)
		} else {
			d.Put = append(d.Put, store.Row{Key: r.Row, Value: r.Value})
		}
	}
	slices.Sort(d.Remove)
	slices.SortFunc(d.Put, func(a, b store.Row) int { return strings.Compare(a.Key, b.Key) })
	u, stored := m.Next(d)
	head, err := m.Chain.Head(context.Background())
	if err == nil {
		_, err = m.Chain.Publish(context.Background(), u, head.Seq, m.Chain.Generation())
	}
	if err != nil {
		m.t.Fatalf("publish version %s: %v", stored.Version(), err)
	}
	m.last = stored
	return stored.Version()
}

// Next is the version that d would make; it is not published.
func (m *Mesh) Next(d store.Delta) (store.Update, store.Stored) {
	m.sequence += 10
	snapshot := m.last.Snapshot.With(d)
	root, before := snapshot.Root(), m.last.Snapshot.Root()
	manifest := &store.Manifest{
		Version: store.Version{Epoch: m.epoch, Seq: m.sequence}.Proto(),
		Root:    root[:], Build: "test", PublishTime: timestamppb.Now(),
	}
	if m.last.Manifest != nil {
		manifest.Previous, manifest.PreviousRoot = m.last.Manifest.GetVersion(), before[:]
	}
	return store.Update{Manifest: manifest, Delta: d}, store.Stored{Manifest: manifest, Snapshot: snapshot}
}

// Epoch goes to a greater epoch; numbers begin anew.
func (m *Mesh) Epoch() {
	m.epoch++
	m.sequence = 0
}

// Last is the last version.
func (m *Mesh) Last() store.Stored { return m.last }

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
