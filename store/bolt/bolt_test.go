package bolt_test

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
	"meshlog.dev/store/storetest"
)

// disk is a file, and the size of its pages.
type disk struct{ path string }

func newDisk(t *testing.T) disk { return disk{filepath.Join(t.TempDir(), "store.db")} }

func (d disk) Open(t *testing.T, r store.Retention) store.Store {
	t.Helper()
	s, discarded, err := bolt.Open(d.path, bolt.Options{Retention: r})
	if err != nil {
		t.Fatal(err)
	}
	if discarded != nil {
		t.Fatal(discarded)
	}
	return s
}

func (d disk) read(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(d.path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (d disk) write(t *testing.T, b []byte) {
	t.Helper()
	if err := os.WriteFile(d.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Crashes compares the file before and after, and makes the files in between.
// bbolt makes the file longer, writes the changed pages in ascending order, syncs,
// then writes one meta page, and syncs.
func (d disk) Crashes(t *testing.T, r store.Retention, write func(store.Store)) iter.Seq2[string, storetest.Disk] {
	return func(yield func(string, storetest.Disk) bool) {
		s := d.Open(t, r)
		before := d.read(t)
		write(s)
		after := d.read(t)
		s.Close()

		now := append(bytes.Clone(before), make([]byte, len(after)-len(before))...)
		left := func(step, outcome string) bool {
			left := newDisk(t)
			left.write(t, now)
			return yield(step+" "+outcome, left)
		}
		page := os.Getpagesize()
		var steps []int
		for p := 2; p*page < len(after); p++ {
			steps = append(steps, p)
		}
		steps = append(steps, 0, 1) // of the meta pages, one changes
		for _, p := range steps {
			was, is := now[p*page:][:page], after[p*page:][:page]
			if bytes.Equal(was, is) {
				continue
			}
			step := fmt.Sprintf("page %d", p)
			if !left(step, "not persisted") {
				return
			}
			half := bytes.Clone(is)
			copy(half[page/2:], was[page/2:])
			if p < 2 {
				copy(half[40:], was[40:]) // all of a meta page is in its first bytes
			}
			if copy(was, half); !left(step, "half persisted") {
				return
			}
			if copy(was, is); !left(step, "persisted") {
				return
			}
		}
	}
}

func TestStore(t *testing.T) {
	storetest.Stores(t, func(t *testing.T) storetest.Disk { return newDisk(t) })
}
