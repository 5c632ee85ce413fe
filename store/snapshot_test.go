package store_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// build makes a snapshot of rows.
func build(rows map[string]string) *store.Snapshot {
	return (*store.Snapshot)(nil).With(deltaOf(rows))
}

// deltaOf returns a delta that puts all rows.
func deltaOf(rows map[string]string) store.Delta {
	var d store.Delta
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		d.Put = append(d.Put, store.Row{Key: key, Value: []byte(rows[key])})
	}
	return d
}

// rowsOf returns the content of s.
func rowsOf(s *store.Snapshot) map[string]string {
	rows := make(map[string]string)
	for r := range s.Rows() {
		rows[r.Key] = string(r.Value)
	}
	return rows
}

// randomDelta changes up to n of the keys k0 to k<keys-1>, and applies the
// change to world as well.
func randomDelta(rnd *rand.Rand, world map[string]string, n, keys int) store.Delta {
	put, remove := make(map[string]string), make(map[string]bool)
	for range 1 + rnd.IntN(n) {
		key := fmt.Sprintf("k%d", rnd.IntN(keys))
		delete(put, key)
		delete(remove, key)
		if rnd.IntN(3) == 0 {
			remove[key] = true
			delete(world, key)
		} else {
			put[key] = fmt.Sprint(rnd.IntN(4))
			world[key] = put[key]
		}
	}
	d := deltaOf(put)
	d.Remove = slices.Sorted(maps.Keys(remove))
	return d
}

func TestRootIsOfTheRowsAlone(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		world := make(map[string]string)
		var s *store.Snapshot
		keys := []int{3, 40, 5000}[seed%3]
		for range 1 + rnd.IntN(30) {
			s = s.With(randomDelta(rnd, world, []int{1, 30, 300}[rnd.IntN(3)], keys))
		}
		want := build(world)
		if s.Root() != want.Root() || s.Len() != len(world) {
			t.Fatalf("seed %d: root %s of %d rows by changes, %s of %d from nothing", seed, s.Root(), s.Len(), want.Root(), len(world))
		}
		if diff := cmp.Diff(world, rowsOf(s)); diff != "" {
			t.Fatalf("seed %d: rows (-want +got):\n%s", seed, diff)
		}
		if !slices.EqualFunc(slices.Collect(s.Rows()), slices.Collect(want.Rows()), func(a, b store.Row) bool { return a.Key == b.Key }) {
			t.Fatalf("seed %d: equal snapshots yield their rows in different orders", seed)
		}
	}
}

func TestDiffLeadsThere(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		world := make(map[string]string)
		var a *store.Snapshot
		a = a.With(randomDelta(rnd, world, 300, 1000))
		was := rowsOf(a)
		b := a.With(randomDelta(rnd, world, 50, 1000))
		other := build(world) // shares nothing with a

		for _, to := range []*store.Snapshot{b, other, nil} {
			d := store.Diff(a, to)
			if err := d.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if got := a.With(d); got.Root() != to.Root() {
				t.Fatalf("seed %d: applied diff leads to root %s, want %s", seed, got.Root(), to.Root())
			}
			if got := to.With(store.Diff(to, a)); got.Root() != a.Root() {
				t.Fatalf("seed %d: the way back leads to root %s, want %s", seed, got.Root(), a.Root())
			}
			if back := store.Diff(to, to); !back.IsEmpty() {
				t.Fatalf("seed %d: diff with itself: %v", seed, back)
			}
		}
		if diff := cmp.Diff(was, rowsOf(a)); diff != "" {
			t.Fatalf("seed %d: a snapshot changed after it was made (-before +after):\n%s", seed, diff)
		}
	}
}

func TestSnapshotEdges(t *testing.T) {
	one := build(map[string]string{"a": "1"})
	tests := []struct {
		name string
		got  *store.Snapshot
		want *store.Snapshot
	}{
		{"nothing on nothing", (*store.Snapshot)(nil).With(store.Delta{}), nil},
		{"remove a row that does not exist", one.With(store.Delta{Remove: []string{"b"}}), one},
		{"put a row with the value it has", one.With(deltaOf(map[string]string{"a": "1"})), one},
		{"remove the last row", one.With(store.Delta{Remove: []string{"a"}}), nil},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: got another snapshot than %v", tt.name, rowsOf(tt.want))
		}
	}
	if root := (*store.Snapshot)(nil).Root(); !root.IsZero() {
		t.Errorf("the empty snapshot has root %s", root)
	}
	if _, ok := one.Get("b"); ok {
		t.Error("Get found a row that is not there")
	}
	if v, ok := build(map[string]string{"a": ""}).Get("a"); !ok || len(v) != 0 {
		t.Errorf("Get of an empty value: %q, %t", v, ok)
	}
}

// The root of given rows never changes, because every manifest has one.
func TestRootIsFixed(t *testing.T) {
	const want = "56c46c3261647bcca58041c5ee786df6759914adebaa60d625062731d026a0c8"
	rows := make(map[string]string)
	for i := range 1000 {
		rows[fmt.Sprintf("v/k8s/c1/Service/default/s%d", i)] = fmt.Sprintf("value %d", i)
	}
	if got := build(rows).Root().String(); got != want {
		t.Errorf("root %s, want %s: the same content has another root than with earlier builds", got, want)
	}
}

func TestRootTellsRowsApart(t *testing.T) {
	seen := make(map[ident.Hash]string)
	for _, rows := range []map[string]string{
		{}, {"": ""}, {"a": ""}, {"": "a"}, {"a": "b"}, {"ab": ""}, {"a": "", "b": ""}, {"a": "b", "b": "a"}, {"a": "a", "b": "b"},
	} {
		root := build(rows).Root()
		if other, ok := seen[root]; ok {
			t.Errorf("%v and %s have the same root", rows, other)
		}
		seen[root] = fmt.Sprint(rows)
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add([]byte("a1b2a-"))
	f.Add([]byte("a1a2a1b-b3"))
	f.Fuzz(func(t *testing.T, script []byte) {
		world := make(map[string]string)
		var s *store.Snapshot
		for ; len(script) >= 2; script = script[2:] {
			key, value := string(script[:1]), string(script[1:2])
			before, was := s, s.Root()
			if value == "-" {
				delete(world, key)
				s = s.With(store.Delta{Remove: []string{key}})
			} else {
				world[key] = value
				s = s.With(deltaOf(map[string]string{key: value}))
			}
			if before.Root() != was || before.With(store.Diff(before, s)).Root() != s.Root() {
				t.Fatalf("change of %q: wrong difference", key)
			}
		}
		if s.Root() != build(world).Root() || s.Len() != len(world) {
			t.Fatalf("%d rows with root %s, want %d", s.Len(), s.Root(), len(world))
		}
	})
}

func manyRows(n int) store.Delta {
	d := store.Delta{Put: make([]store.Row, n)}
	for i := range d.Put {
		d.Put[i] = store.Row{Key: fmt.Sprintf("v/k8s/c1/Service/namespace/name%07d", i), Value: fmt.Appendf(nil, "%0200d", i)}
	}
	return d
}

func BenchmarkBuild100k(b *testing.B) {
	d := manyRows(100_000)
	for b.Loop() {
		(*store.Snapshot)(nil).With(d)
	}
}

func BenchmarkWith100k(b *testing.B) {
	s := (*store.Snapshot)(nil).With(manyRows(100_000))
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i++
				d := manyRows(n)
				for j := range d.Put {
					d.Put[j].Value = fmt.Append(nil, i)
				}
				s.With(d)
			}
		})
	}
}

func BenchmarkDiff100k(b *testing.B) {
	from := (*store.Snapshot)(nil).With(manyRows(100_000))
	d := manyRows(100)
	for j := range d.Put {
		d.Put[j].Value = nil
	}
	to := from.With(d)
	for b.Loop() {
		store.Diff(from, to)
	}
}

func BenchmarkGet100k(b *testing.B) {
	s := (*store.Snapshot)(nil).With(manyRows(100_000))
	for b.Loop() {
		s.Get("v/k8s/c1/Service/namespace/name0050000")
	}
}
