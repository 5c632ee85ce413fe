package suite

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// boltDisk is the path of a file.
type boltDisk string

func newBoltDisk(t *testing.T) Disk { return boltDisk(filepath.Join(t.TempDir(), "store.db")) }

func (d boltDisk) Open(t *testing.T, r store.Retention) store.Store {
	t.Helper()
	s, discarded, err := bolt.Open(string(d), r)
	must(t, err)
	if discarded != nil {
		t.Fatal(discarded)
	}
	return s
}

// Crashes compares the file before and after, and makes the files in between.
// bbolt makes the file longer, writes the changed pages in ascending order, syncs,
// then writes one meta page, and syncs.
func (d boltDisk) Crashes(t *testing.T, r store.Retention, write func(store.Store)) iter.Seq2[string, Disk] {
	return func(yield func(string, Disk) bool) {
		s := d.Open(t, r)
		before, err := os.ReadFile(string(d))
		must(t, err)
		write(s)
		after, err := os.ReadFile(string(d))
		must(t, err)
		s.Close()

		now := append(bytes.Clone(before), make([]byte, len(after)-len(before))...)
		left := func(step, outcome string) bool {
			left := filepath.Join(t.TempDir(), "store.db")
			must(t, os.WriteFile(left, now, 0o600))
			return yield(step+" "+outcome, boltDisk(left))
		}
		page := os.Getpagesize()
		var steps []int
		for p := 2; p*page < len(after); p++ {
			steps = append(steps, p)
		}
		steps = append(steps, 0, 1) // the meta pages; a commit changes one of them
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
				copy(half[40:], was[40:]) // a meta page uses only its first bytes
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
