package names_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

func TestEqualSetsAreOne(t *testing.T) {
	table := new(names.Table)
	abc := table.Intern(names.Of("a", "b", "c"))
	for name, same := range map[string]*names.Names{
		"another order":     table.Intern(names.Of("c", "a", "b")),
		"doubles":           table.Intern(names.Of("a", "b", "a", "c", "c")),
		"a list":            table.InternList([]string{"b", "a", "c"}),
		"with":              table.With(table.Intern(names.Of("a", "c")), names.Of("b", "a", "b")),
		"with nothing":      table.With(abc, names.Wire{}),
		"with a known name": table.With(abc, names.Of("b")),
		"without":           table.Without(table.Intern(names.Of("a", "b", "c", "d")), names.Of("d", "x", "d")),
		"without nothing":   table.Without(abc, names.Of("x")),
	} {
		if same != abc {
			t.Errorf("%s: %v", name, same.List())
		}
	}
	for name, other := range map[string]*names.Names{
		"less":    table.Without(abc, names.Of("a")),
		"more":    table.With(abc, names.Of("d")),
		"doubled": table.Intern(names.Of("a", "a", "b")),
		"nothing": table.Without(abc, names.Of("a", "b", "c")),
	} {
		if other == abc {
			t.Errorf("%s is the same", name)
		}
	}
	if n := table.Intern(names.Wire{}); n != nil || n.Len() != 0 || n.Has("a") {
		t.Errorf("the empty set is %v", n)
	}
	runtime.KeepAlive(abc)
}

// TestRandomSets compares random sets with maps.
func TestRandomSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	table := new(names.Table)
	some := func() []string {
		var list []string
		for range r.IntN(6) {
			list = append(list, fmt.Sprint("n", r.IntN(8)))
		}
		return list
	}
	var have *names.Names
	want := map[string]bool{}
	for range 2000 {
		add, drop := some(), some()
		have = table.Without(table.With(have, names.Of(add...)), names.Of(drop...))
		for _, n := range add {
			want[n] = true
		}
		for _, n := range drop {
			delete(want, n)
		}
		var list []string
		for n := range want {
			list = append(list, n)
		}
		if other := table.InternList(slices.Clone(list)); other != have {
			t.Fatalf("%v, not %v", have.List(), other.List())
		}
	}
}

func TestWire(t *testing.T) {
	long := string(make([]byte, 300))
	w := names.Of("a", "", long, "b")
	var got []string
	for n := range w.All() {
		got = append(got, string(n))
	}
	if diff := cmp.Diff([]string{"a", "", long, "b"}, got); diff != "" || w.Len() != 4 {
		t.Errorf("%d names, -want +got:\n%s", w.Len(), diff)
	}
	if !w.Has("b") || w.Has("c") {
		t.Error("Has is wrong")
	}
	if w.Mark() != names.Of("a", "", long, "b").Mark() || w.Mark() == names.Of("b", "", long, "a").Mark() {
		t.Error("Mark is equal for another order, or differs for equal names")
	}
	if joined := names.Of("a").Join(names.Of("b")); joined.Mark() != names.Of("a", "b").Mark() || joined.Len() != 2 {
		t.Error("Join does not have the names of both")
	}
}

// FuzzScan checks that Scan takes the well-formed names at the front of any bytes.
func FuzzScan(f *testing.F) {
	f.Add([]byte("\x1a\x01a\x1a\x80\x01x"))
	f.Add([]byte("\x1a\x81\x00a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, n := names.Scan(b, 3)
		if n < 0 {
			return
		}
		var want []string
		for rest := b; len(rest) > 0 && rest[0] == 0x1a; {
			v, size := protowire.ConsumeBytes(rest[1:])
			if size < 0 {
				t.Fatalf("Scan accepted %q, which is malformed", b)
			}
			want, rest = append(want, string(v)), rest[1+size:]
		}
		var got []string
		for v := range w.All() {
			got = append(got, string(v))
		}
		if diff := cmp.Diff(want, got); diff != "" || w.Len() != len(want) {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestVersions(t *testing.T) {
	a, b := xds.Absent("a"), xds.Absent("b")
	v := names.Versions{}.With("a", a.String()).With("b", b.String())
	if sum, ok := v.Sum(); !ok || sum != a.Add(b) || v.Len() != 2 {
		t.Errorf("Sum %v %v", sum, ok)
	}
	if _, ok := v.With("c", "2026-01-01T00:00:00Z/7").Sum(); ok {
		t.Error("a version of another control plane was accepted as ours")
	}
	got := map[string]string{}
	for name, version := range v.Clone().All() {
		got[string(name)] = string(version)
	}
	if diff := cmp.Diff(map[string]string{"a": a.String(), "b": b.String()}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestUnusedLeaves checks that sets that no stream uses are freed.
func TestUnusedLeaves(t *testing.T) {
	table := new(names.Table)
	keep := table.Intern(names.Of("kept"))
	for i := range 100 {
		table.Intern(names.Of(fmt.Sprint("gone", i)))
	}
	runtime.GC()
	if n := table.Len(); n != 1 {
		t.Errorf("%d sets", n)
	}
	if table.Intern(names.Of("kept")) != keep {
		t.Error("a set in use is gone")
	}
}

func TestManyGoroutines(t *testing.T) {
	table := new(names.Table)
	old, next := set("a@1", "b@1"), set("a@2", "c@1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				a := table.Intern(names.Of("x", fmt.Sprint(i%7)))
				if b := table.Intern(names.Of(fmt.Sprint(i%7), "x")); a != b {
					t.Error("equal sets have different pointers")
				}
				l := table.List(ident.CDS, next.Sum, func() []*xds.Resource { return next.Resources })
				if n := l.Memo.Do(false, func() any { return len(l.Resources) }); n != 2 {
					t.Error(n)
				}
				if ch := table.Changes(old, next); len(ch.Resources) != 2 || len(ch.Gone) != 1 {
					t.Error("other changes")
				}
			}
		})
	}
	wg.Wait()
}

func TestChanges(t *testing.T) {
	old, next := set("a@1", "b@1", "c@1", "e@1"), set("b@1", "c@2", "d@1", "e@1")
	ch := new(names.Table).Changes(old, next)
	text := func(list []*xds.Resource) (all []string) {
		for _, r := range list {
			if r == nil {
				all = append(all, "-")
			} else {
				all = append(all, r.Name)
			}
		}
		return all
	}
	want := [][]string{{"c", "d"}, {"c", "-"}, {"a"}}
	if diff := cmp.Diff(want, [][]string{text(ch.Resources), text(ch.Old), text(ch.Gone)}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSumIn(t *testing.T) {
	ab, table := set("a@1", "b@1"), new(names.Table)
	sum := func(list ...string) xds.Sum { return table.InternList(list).SumIn(ab) }
	if sum("b", "a") != ab.Sum {
		t.Error("a subscription to all names has a sum other than the set's")
	}
	if sum("a") == sum("a", "x") {
		t.Error("a name that is not in the set does not affect the sum")
	}
}

func set(contents ...string) *xds.Set {
	s := &xds.Set{}
	for _, c := range contents {
		r := &xds.Resource{Name: c[:1], Sum: xds.Absent(c)}
		s.Resources = append(s.Resources, r)
		s.Sum = s.Sum.Add(r.Sum)
	}
	return s
}

func many() names.Wire {
	var list []string
	for i := range 1001 {
		list = append(list, fmt.Sprintf("outbound|8080||service-%04d.default.svc.cluster.local", i))
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return names.Of(list...)
}

// BenchmarkIntern1001 recognises names in another order.
func BenchmarkIntern1001(b *testing.B) {
	table, w := new(names.Table), many()
	n := table.Intern(w)
	b.ReportAllocs()
	for b.Loop() {
		if table.Intern(w) != n {
			b.Fatal("another set")
		}
	}
}

// BenchmarkMark1001 recognises names in the same order.
func BenchmarkMark1001(b *testing.B) {
	w := many()
	b.ReportAllocs()
	for b.Loop() {
		w.Mark()
	}
}
