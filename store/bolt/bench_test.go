package bolt_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

func manyRows(n int) store.Delta {
	d := store.Delta{Put: make([]store.Row, n)}
	for i := range d.Put {
		d.Put[i] = store.Row{Key: fmt.Sprintf("v/k8s/c1/Service/namespace/name%07d", i), Value: fmt.Appendf(nil, "%0500d", i)}
	}
	return d
}

// stepRows changes n rows of all, spread evenly, differently for each i.
func stepRows(all, n, i int) store.Delta {
	d := store.Delta{Put: make([]store.Row, n)}
	for j := range d.Put {
		at := (j*(all/n) + i) % all
		d.Put[j] = store.Row{Key: fmt.Sprintf("v/k8s/c1/Service/namespace/name%07d", at), Value: fmt.Appendf(nil, "%0500d", i)}
	}
	return store.Diff(nil, (*store.Snapshot)(nil).With(d))
}

func BenchmarkCommit(b *testing.B) {
	for _, all := range []int{10_000, 100_000} {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("of=%d/rows=%d", all, n), func(b *testing.B) {
				s, _, err := bolt.Open(filepath.Join(b.TempDir(), "store.db"), store.Retention{Versions: 1000})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				latest, c := version(store.Stored{}, 1, manyRows(all))
				if err := s.Commit(b.Context(), ident.Position{}, c); err != nil {
					b.Fatal(err)
				}
				i := 1
				for b.Loop() {
					i++
					next, c := version(latest, uint64(i), stepRows(all, n, i))
					if err := s.Commit(b.Context(), latest.Version(), c); err != nil {
						b.Fatal(err)
					}
					latest = next
				}
			})
		}
	}
}

func BenchmarkOpen100k(b *testing.B) {
	path := filepath.Join(b.TempDir(), "store.db")
	open := func() *bolt.Store {
		s, aside, err := bolt.Open(path, store.Retention{})
		if err != nil || aside != nil {
			b.Fatal(aside, err)
		}
		return s
	}
	s := open()
	_, c := version(store.Stored{}, 1, manyRows(100_000))
	if err := s.Commit(b.Context(), ident.Position{}, c); err != nil {
		b.Fatal(err)
	}
	s.Close()
	for b.Loop() {
		open().Close()
	}
}

// BenchmarkAt goes back 1000 versions of 100 rows each.
func BenchmarkAt1000Back(b *testing.B) {
	s, _, err := bolt.Open(filepath.Join(b.TempDir(), "store.db"), store.Retention{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	latest, c := version(store.Stored{}, 1, manyRows(10_000))
	if err := s.Commit(b.Context(), ident.Position{}, c); err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		next, c := version(latest, uint64(i+2), stepRows(10_000, 100, i))
		if err := s.Commit(b.Context(), latest.Version(), c); err != nil {
			b.Fatal(err)
		}
		latest = next
	}
	for b.Loop() {
		if _, err := s.At(b.Context(), ident.Position{Epoch: 1, Seq: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
