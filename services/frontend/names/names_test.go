package names_test

import (
	"bytes"
	"fmt"
	"maps"
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

func with(t *names.Table, n *names.Names, added ...string) *names.Names {
	return t.With(n, n.Lacking(names.Of(added...)))
}

func without(t *names.Table, n *names.Names, removed ...string) *names.Names {
	return t.Without(n, n.Having(names.Of(removed...)))
}

func listOf(n *names.Names) []string { return slices.Collect(n.All()) }

func TestEqualSetsAreOne(t *testing.T) {
	table := new(names.Table)
	abc := table.Intern(names.Of("a", "b", "c"))
	for name, same := range map[string]*names.Names{
		"another order":     table.Intern(names.Of("c", "a", "b")),
		"doubles":           table.Intern(names.Of("a", "b", "a", "c", "c")),
		"a list":            table.InternList([]string{"b", "a", "c"}),
		"with":              with(table, table.Intern(names.Of("a", "c")), "b", "a", "b"),
		"with nothing":      with(table, abc),
		"with a known name": with(table, abc, "b"),
		"without":           without(table, table.Intern(names.Of("a", "b", "c", "d")), "d", "x", "d"),
		"without nothing":   without(table, abc, "x"),
	} {
		if same != abc {
			t.Errorf("%s: %v", name, listOf(same))
		}
	}
	for name, other := range map[string]*names.Names{
		"less":    without(table, abc, "a"),
		"more":    with(table, abc, "d"),
		"doubled": table.Intern(names.Of("a", "a", "b")),
		"nothing": without(table, abc, "a", "b", "c"),
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
		have = without(table, with(table, have, add...), drop...)
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
			t.Fatalf("%v, not %v", listOf(have), listOf(other))
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
	if diff := cmp.Diff([]string{"a", long, "b"}, got); diff != "" || w.Len() != 4 {
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
		count := 0
		for rest := b; len(rest) > 0 && rest[0] == 0x1a; {
			v, size := protowire.ConsumeBytes(rest[1:])
			if size < 0 {
				t.Fatalf("Scan accepted %q, which is malformed", b)
			}
			if len(v) > 0 {
				want = append(want, string(v))
			}
			rest = rest[1+size:]
			count++
		}
		var got []string
		for v := range w.All() {
			got = append(got, string(v))
		}
		if diff := cmp.Diff(want, got); diff != "" || w.Len() != count {
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
				l := table.List(ident.CDS, next.Sum, false, func() []*xds.Resource { return next.Resources })
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

// A set of names remembers its Sums in fewer Sets than there are here. Clients that
// ask in any order, at the same time, must still get the Sum of the right Set.
func TestSumInManySets(t *testing.T) {
	n := new(names.Table).Intern(many())
	var sets []*xds.Set
	var want []xds.Sum
	for version := range 50 {
		s, sum := &xds.Set{}, xds.Sum{}
		for name := range n.All() {
			if len(s.Resources) < 10*version { // the others are absent
				s.Resources = append(s.Resources, &xds.Resource{Name: name, Sum: xds.Absent(fmt.Sprint(name, version))})
			}
		}
		n.Select(s, func(name string, r *xds.Resource) { sum = sum.Add(names.SumOf(name, r)) })
		sets, want = append(sets, s), append(want, sum)
	}
	var clients sync.WaitGroup
	for seed := range uint64(4) {
		clients.Go(func() {
			order := rand.New(rand.NewPCG(seed, 1))
			for range 500 {
				if i := order.IntN(len(sets)); n.SumIn(sets[i]) != want[i] {
					t.Errorf("client %d: version %d has the Sum of another one", seed, i)
				}
			}
		})
	}
	clients.Wait()
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

// BenchmarkSumIn1001 compares a client that resumes with the last 16 versions.
func BenchmarkSumIn1001(b *testing.B) {
	n := new(names.Table).Intern(many())
	var versions [16]*xds.Set
	for i := range versions {
		versions[i] = &xds.Set{}
		for name := range n.All() {
			versions[i].Resources = append(versions[i].Resources, &xds.Resource{Name: name, Sum: xds.Absent(name)})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, v := range versions {
			n.SumIn(v)
		}
	}
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

// TestLargeSets compares random changes of sets of several chunks with maps.
func TestLargeSets(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	table := new(names.Table)
	var have *names.Names
	want := map[string]bool{}
	for round := range 400 {
		size := []int{1, 3, 300, 2000}[r.IntN(4)]
		var some []string
		for range size {
			some = append(some, fmt.Sprint("n", r.IntN(5000)))
		}
		before := have
		if r.IntN(2) == 0 {
			have = with(table, have, some...)
			for _, n := range some {
				want[n] = true
			}
		} else {
			have = without(table, have, some...)
			for _, n := range some {
				delete(want, n)
			}
		}
		list := slices.Sorted(maps.Keys(want))
		if diff := cmp.Diff(list, listOf(have)); diff != "" || have.Len() != len(list) {
			t.Fatalf("round %d: -want +got:\n%s", round, diff)
		}
		for range 20 {
			if n := fmt.Sprint("n", r.IntN(5000)); have.Has(n) != want[n] || (len(have.Having(names.Of(n))) == 1) != want[n] {
				t.Fatalf("round %d: Has(%s) is wrong", round, n)
			}
		}
		after := map[string]bool{}
		for n := range before.All() {
			after[n] = true
		}
		last := ""
		names.Differ(before, have, func(name string, is bool) {
			if name <= last || after[name] == is {
				t.Fatalf("round %d: Differ calls %s %v after %s", round, name, is, last)
			}
			if last = name; is {
				after[name] = true
			} else {
				delete(after, name)
			}
		})
		if diff := cmp.Diff(want, after); diff != "" {
			t.Fatalf("round %d: Differ: -want +got:\n%s", round, diff)
		}
	}
}

// TestJoinOfShortRuns checks that names in many short runs, as a client sends that
// puts other fields between them, take time in proportion to their bytes (XDS-1):
// joining each run anew would copy 25 GB.
func TestJoinOfShortRuns(t *testing.T) {
	var w names.Wire
	for range 200_000 {
		w = w.Join(names.Of("a"))
	}
	if w.Len() != 200_000 || w.TooMany() {
		t.Errorf("%d names", w.Len())
	}
}

// TestScanStops checks that Scan reads no more names than one stream may have
// (XDS-1).
func TestScanStops(t *testing.T) {
	one := protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "a")
	w, n := names.Scan(bytes.Repeat(one, 2*names.Max), 3)
	if !w.TooMany() || w.Len() != names.Max+1 || n != w.Len()*len(one) {
		t.Errorf("read %d names, %d bytes", w.Len(), n)
	}
	if w, _ := names.Scan(bytes.Repeat(one, names.Max), 3); w.TooMany() {
		t.Error("as many names as are allowed are too many")
	}
}
