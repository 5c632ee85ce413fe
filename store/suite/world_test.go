package suite

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// rows is a set of rows, or a change of one: an absent value removes the key.
type rows map[string]*string

// is returns a formatted value for rows.
func is(format string, args ...any) *string {
	s := fmt.Sprintf(format, args...)
	return &s
}

func (r rows) delta() store.Delta {
	var d store.Delta
	for _, key := range slices.Sorted(maps.Keys(r)) {
		if r[key] == nil {
			d.Remove = append(d.Remove, key)
		} else {
			d.Put = append(d.Put, store.Row{Key: key, Value: []byte(*r[key])})
		}
	}
	return d
}

// epoch is the time of the record of version E.0.
var epoch = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

// next returns version v, which applies change to prev, at one record per second.
func next(prev store.Stored, v ident.Position, change rows) store.Stored {
	s := prev.Snapshot.With(change.delta())
	root, was := s.Root(), prev.Snapshot.Root()
	m := &store.Manifest{
		Version:    store.VersionProto(v),
		RecordTime: timestamppb.New(epoch.Add(time.Duration(v.Seq) * time.Second)),
		Root:       root[:],
		Build:      "suite",
	}
	if prev.Manifest != nil {
		m.Previous, m.PreviousRoot = store.VersionProto(prev.Version()), was[:]
	}
	return store.Stored{Manifest: m, Snapshot: s}
}

// commitOf returns the commit of next after the latest stored version.
func commitOf(latest, next store.Stored) store.Commit {
	return store.Commit{Manifest: next.Manifest, Snapshot: next.Snapshot, Delta: store.Diff(latest.Snapshot, next.Snapshot)}
}

// updateOf returns the link from prev to next.
func updateOf(prev, next store.Stored) store.Update {
	return store.Update{Manifest: next.Manifest, Delta: store.Diff(prev.Snapshot, next.Snapshot)}
}

// history returns n versions of epoch 1, each with a few changes.
func history(n int) []store.Stored {
	var versions []store.Stored
	var last store.Stored
	for i := range n {
		last = next(last, ident.Position{Epoch: 1, Seq: uint64(i + 1)}, rows{
			"always":                    is("same"),
			"counter":                   is("%d", i),
			fmt.Sprintf("new%d", i):     is("born in %d", i),
			fmt.Sprintf("new%d", i-3):   nil,
			fmt.Sprintf("other%d", i%5): is("%d", i%7),
		})
		versions = append(versions, last)
	}
	return versions
}

func content(s *store.Snapshot) map[string]string {
	m := make(map[string]string)
	for r := range s.Rows() {
		m[r.Key] = string(r.Value)
	}
	return m
}

// same fails unless got and want have equal manifests, rows and roots.
func same(t *testing.T, what string, got, want store.Stored) {
	t.Helper()
	if diff := cmp.Diff(want.Manifest, got.Manifest, protocmp.Transform()); diff != "" {
		t.Fatalf("%s: manifest (-want +got):\n%s", what, diff)
	}
	if diff := cmp.Diff(content(want.Snapshot), content(got.Snapshot)); diff != "" {
		t.Fatalf("%s: rows (-want +got):\n%s", what, diff)
	}
	if root := got.Snapshot.Root(); root != store.RootOf(got.Manifest) {
		t.Fatalf("%s: root %s, the manifest says %s", what, root, store.RootOf(got.Manifest))
	}
}

// must fails on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error is %v, want %v", what, err, want)
	}
}
