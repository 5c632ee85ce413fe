// Package frontendtest publishes small worlds on a version chain, for tests of
// the frontend.
package frontendtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Mesh is a world, published version by version.
type Mesh struct {
	t        testing.TB
	chain    store.Publisher
	epoch    uint64
	last     store.Stored
	sequence uint64
}

// NewMesh returns a mesh without a version, which publishes on chain.
func NewMesh(t testing.TB, chain store.Publisher) *Mesh {
	return &Mesh{t: t, chain: chain, epoch: 1}
}

// Publish publishes the next version.
func (m *Mesh) Publish(changes ...meshtest.Change) ident.Position {
	m.t.Helper()
	rows := make([]world.RowChange, len(changes))
	for i, c := range changes {
		rows[i] = c.Row()
	}
	return m.PublishRows(rows...)
}

// PublishRows publishes the next version, made of rows.
func (m *Mesh) PublishRows(rows ...world.RowChange) ident.Position {
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
	head, err := m.chain.Head(context.Background())
	if err == nil {
		_, err = m.chain.Publish(context.Background(), u, head.Seq, m.chain.Generation())
	}
	if err != nil {
		m.t.Fatalf("publish version %s: %v", stored.Version(), err)
	}
	m.last = stored
	return stored.Version()
}

// Next returns the version that d would make, without publishing it.
func (m *Mesh) Next(d store.Delta) (store.Update, store.Stored) {
	m.sequence += 10
	snapshot := m.last.Snapshot.With(d)
	root, before := snapshot.Root(), m.last.Snapshot.Root()
	manifest := &store.Manifest{
		Version: store.VersionProto(ident.Position{Epoch: m.epoch, Seq: m.sequence}),
		Root:    root[:], Build: "test", PublishTime: timestamppb.Now(),
	}
	if m.last.Manifest != nil {
		manifest.Previous, manifest.PreviousRoot = m.last.Manifest.GetVersion(), before[:]
	}
	return store.Update{Manifest: manifest, Delta: d}, store.Stored{Manifest: manifest, Snapshot: snapshot}
}

// Epoch begins a greater epoch; sequence numbers begin anew.
func (m *Mesh) Epoch() {
	m.epoch++
	m.sequence = 0
}

// Last returns the last version.
func (m *Mesh) Last() store.Stored { return m.last }
