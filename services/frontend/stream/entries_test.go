package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestChangedEntries compares entries with a map, and checks that only the entries
// that were changed are looked at (XDS-8).
func TestChangedEntries(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l entries
	all, changed := map[string]bool{}, map[string]bool{}
	for step := range 20_000 {
		name := fmt.Sprintf("%04d", random.IntN(2000))
		switch n := random.IntN(1000); {
		case n < 450:
			if e := l.change(name); (e != nil) != all[name] || e != nil && e.name != name {
				t.Fatalf("step %d: change(%s) finds %v", step, name, e)
			} else if e == nil {
				l.insert(entry{name: name})
			}
			all[name], changed[name] = true, true
		case n < 800:
			l.remove(name)
			delete(all, name)
			delete(changed, name)
		case n < 990:
			if e := l.find(name); (e != nil) != all[name] {
				t.Fatalf("step %d: find(%s) finds %v", step, name, e)
			}
		case n < 992:
			ends := func(name string) bool { return strings.HasSuffix(name, "7") }
			l.removeIf(func(e *entry) bool { return ends(e.name) })
			maps.DeleteFunc(all, func(name string, _ bool) bool { return ends(name) })
			maps.DeleteFunc(changed, func(name string, _ bool) bool { return ends(name) })
		default:
			var got []string
			for e := range l.takeChanged() {
				got = append(got, e.name)
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(changed)), got); diff != "" {
				t.Fatalf("step %d: changed entries (-want +got):\n%s", step, diff)
			}
			clear(changed)
		}
	}
	var got []string
	for e := range l.all() {
		got = append(got, e.name)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(all)), got); diff != "" || l.len() != len(all) {
		t.Errorf("%d entries (-want +got):\n%s", l.len(), diff)
	}
}

// TestSettledEntries checks that settle looks at what was changed since the last one.
func TestSettledEntries(t *testing.T) {
	var l entries
	for i := range 100 * blockSize {
		l.insert(entry{name: fmt.Sprintf("%06d", i)})
	}
	looked := 0
	look := func(*entry) bool { looked++; return false }
	if l.settle(look); looked != 100*blockSize {
		t.Errorf("%d entries are looked at, want all: all are new", looked)
	}
	looked = 0
	l.change("000777")
	if l.settle(look); looked == 0 || looked > blockSize {
		t.Errorf("%d entries are looked at after one was changed", looked)
	}
	l.changeAll()
	if l.settle(func(*entry) bool { return true }); l.len() != 0 || l.blocks != nil {
		t.Errorf("%d entries are left", l.len())
	}
}

// TestEntriesKeepNoMemory checks that few entries that are left of many, again and
// again, do not keep the memory of all.
func TestEntriesKeepNoMemory(t *testing.T) {
	var l entries
	name := func(i int) string { return fmt.Sprintf("%06d", i) }
	for i := range 100 * blockSize {
		l.insert(entry{name: name(i)})
	}
	for i := range 100 * blockSize {
		if i%blockSize != 0 {
			l.remove(name(i))
		}
	}
	kept := 0
	for _, b := range l.blocks {
		kept += cap(b.list)
	}
	if most := 8 * l.len(); kept > most {
		t.Errorf("%d entries have room for %d, want at most %d", l.len(), kept, most)
	}
}
