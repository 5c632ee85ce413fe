package content

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// mesh is a cache and the world that it serves.
type mesh struct {
	*Cache
	t     testing.TB
	names *names.Table
	world *world.World
	pc    *index.PushContext
	seq   uint64
}

func newMesh(t testing.TB, changes ...Change) *mesh {
	m := &mesh{Cache: New(0), t: t, world: world.NewWorld(), names: new(names.Table)}
	m.pc = index.NewPushContext(m.world)
	m.change(changes...)
	return m
}

func (m *mesh) change(changes ...Change) {
	m.t.Helper()
	next, keys, err := m.world.Apply(Rows(changes...))
	if err != nil {
		m.t.Fatal(err)
	}
	var inputs []index.Input
	m.world = next
	m.pc, inputs = m.pc.Next(next, keys)
	m.seq++
	m.Update(ident.Position{Epoch: 1, Seq: m.seq}, time.Time{}, m.pc, inputs)
}

// listener is a client that notes when it was woken.
type listener struct {
	*Client
	woken bool
}

func (m *mesh) join(cluster string) *listener {
	return m.joinAs(&proxy.Proxy{ID: cluster, Cluster: cluster})
}

func (m *mesh) joinAs(p *proxy.Proxy) *listener {
	l := new(listener)
	l.Client = m.Join(p, func() { l.woken = true })
	l.View()
	return l
}

func (l *listener) was() bool {
	was := l.woken
	l.woken = false
	return was
}

func TestWoken(t *testing.T) {
	m := newMesh(t, Put("a", Cluster("a", 1)), Put("ea", Endpoints("a", 1)), Put("eb", Endpoints("b", 1)),
		PutFor("n", Group("n"), Cluster("n", 1)))
	one, two := m.names.InternList([]string{"a", "absent"}), m.names.InternList([]string{"b"})
	clients := map[string]*listener{}
	for _, name := range []string{"all", "a", "b", "nothing", "left"} {
		clients[name] = m.join("m")
	}
	clients["all"].Watch(ident.CDS, Watch{All: true})
	clients["a"].Watch(ident.EDS, Watch{Names: one})
	clients["b"].Watch(ident.EDS, Watch{Names: two})
	clients["left"].Watch(ident.CDS, Watch{All: true})
	clients["left"].Leave()
	clients["n"] = m.join("n")
	clients["n"].Watch(ident.CDS, Watch{All: true})

	for _, step := range []struct {
		name    string
		changes []Change
		woken   []string
	}{
		{"nothing", nil, nil},
		{"endpoints", []Change{Put("ea", Endpoints("a", 2))}, []string{"a"}},
		{"absent endpoints appear", []Change{Put("absent", Endpoints("absent", 2))}, []string{"a"}},
		{"names without a watcher", []Change{Put("ec", Endpoints("c", 2))}, nil},
		{"endpoints of two clients", []Change{Put("ea", Endpoints("a", 3)), Remove("eb")}, []string{"a", "b"}},
		{"a cluster for all", []Change{Put("a", Cluster("a", 2))}, []string{"all", "n"}},
		{"a cluster of one class", []Change{PutFor("n", Group("n"), Cluster("n", 2))}, []string{"n"}},
		{"a change that is undone", []Change{Put("ea", Endpoints("a", 4)), Put("ea", Endpoints("a", 3))}, nil},
		{"selectors", []Change{PutFor("o", Group("o"), Cluster("o", 1))}, []string{"a", "all", "b", "n", "nothing"}},
	} {
		m.change(step.changes...)
		var woken []string
		for name, l := range clients {
			if l.was() {
				woken = append(woken, name)
				l.View()
			}
		}
		slices.Sort(woken)
		if diff := cmp.Diff(step.woken, woken); diff != "" {
			t.Errorf("%s: woken (-want +got):\n%s", step.name, diff)
		}
	}
}

// A client that watches something that changed since its last View is woken at
// once.
func TestWatchLate(t *testing.T) {
	m := newMesh(t, Put("ea", Endpoints("a", 1)))
	l := m.join("m")
	m.change(Put("ea", Endpoints("a", 2)))
	if l.was() {
		t.Error("woken for an unwatched name")
	}
	l.Watch(ident.EDS, Watch{Names: m.names.InternList([]string{"a"})})
	if !l.was() {
		t.Error("not woken for a change from before the watch")
	}
	l.View()
	l.Watch(ident.EDS, Watch{Names: m.names.InternList([]string{"a", "b"})})
	if l.was() {
		t.Error("woken for content that it has")
	}
}

// A client that is not woken has everything that it watches at the current version.
func TestClientVersion(t *testing.T) {
	m := newMesh(t, Put("ea", Endpoints("a", 1)))
	l := m.join("m")
	l.Watch(ident.EDS, Watch{Names: m.names.InternList([]string{"a"})})
	for _, step := range []struct {
		change Change
		look   bool
		want   uint64
	}{
		{Put("eb", Endpoints("b", 1)), false, 2},
		{Put("ea", Endpoints("a", 2)), false, 1},
		{Put("eb", Endpoints("b", 2)), false, 1},
		{Put("eb", Endpoints("b", 3)), true, 5},
		{Put("eb", Endpoints("b", 4)), false, 6},
	} {
		m.change(step.change)
		if step.look {
			l.View()
		}
		if got := l.Version().Seq; got != step.want {
			t.Errorf("at version %d: the client is at %d, want %d", m.seq, got, step.want)
		}
	}
}

// View.Until is the last version at which the previous view was current.
func TestUntil(t *testing.T) {
	m := newMesh(t, Put("ea", Endpoints("a", 1)))
	l := m.join("m")
	l.Watch(ident.EDS, Watch{Names: m.names.InternList([]string{"a"})})
	for _, step := range []struct {
		change Change
		want   uint64
	}{
		{Put("eb", Endpoints("b", 1)), 2}, // not watched
		{Put("ea", Endpoints("a", 2)), 2},
		{Put("ec", Endpoints("c", 1)), 4},
	} {
		m.change(step.change)
		if got := l.View().Until.Seq; got != step.want {
			t.Errorf("at version %d: the previous view was current until %d, want %d", m.seq, got, step.want)
		}
	}
	m.change(Put("ea", Endpoints("a", 3)))
	m.change(Put("ea", Endpoints("a", 4)))
	if got := l.View().Until.Seq; got != 4 {
		t.Errorf("after two changes: until %d, want 4", got)
	}
}

// View does not wait while the next version is built.
func TestViewDoesNotWait(t *testing.T) {
	m := newMesh(t, Put("a", Cluster("a", 1)))
	l := m.join("m")
	m.building.Lock()
	defer m.building.Unlock()
	if got := l.View().Version.Seq; got != 1 {
		t.Errorf("version %d", got)
	}
	late := m.Join(&proxy.Proxy{Cluster: "m"}, func() {})
	if got := late.View().Sets; got != l.View().Sets {
		t.Error("a client of an existing class has another view")
	}
	late.Leave()
}

// Past yields the content served at earlier versions, also to clients that joined
// later.
func TestPastOfAnotherClass(t *testing.T) {
	m := newMesh(t, Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)))
	witness := m.join("n")
	var want []xds.Sum
	for i := range 20 {
		switch {
		case i == 10:
			m.change(PutFor("o", Group("o"), Cluster("o", 1)))
		default:
			m.change(Put("a", Cluster("a", 2+i)), PutFor("c", Group("n"), Cluster("c", i/7)))
		}
		want = slices.Insert(want, 0, witness.View().Sets[ident.CDS].Sum)
	}
	want = want[1 : 1+Retained]
	sums := func(cl *Client) []xds.Sum {
		var all []xds.Sum
		for v := range cl.Past() {
			all = append(all, v.Sets[ident.CDS].Sum)
		}
		return all
	}
	late := m.Join(&proxy.Proxy{Cluster: "n"}, func() {})
	if diff := cmp.Diff(want, sums(witness.Client)); diff != "" {
		t.Errorf("of an earlier client (-want +got):\n%s", diff)
	}
	witness.Leave()
	m.change() // its class is forgotten
	want = slices.Insert(want, 0, want[0])[:Retained]
	want[0] = late.View().Sets[ident.CDS].Sum
	for range 2 { // the first time, the cache makes the sets; then it has them
		if diff := cmp.Diff(want, sums(late)); diff != "" {
			t.Errorf("of a later client (-want +got):\n%s", diff)
		}
	}
	a := late.View().Sets[ident.CDS].Find("b")
	for v := range late.Past() {
		if v.Sets[ident.CDS].Find("b") != a {
			t.Fatal("an unchanged cluster was made twice")
		}
	}
}

// Clients of many new classes join at once while new versions are served. Each
// client's past has the content that its class was served.
func TestPastOfManyTogether(t *testing.T) {
	const groups = 12
	var changes []Change
	for g := range groups {
		changes = append(changes, PutFor(fmt.Sprint("own", g), Group(fmt.Sprint(g)), Cluster(fmt.Sprint("own", g), 1)))
	}
	m := newMesh(t, changes...)
	served := map[ident.Position]map[string]xds.Sum{}
	see := func() {
		var all []*listener
		now := map[string]xds.Sum{}
		for g := range groups {
			l := m.join(fmt.Sprint(g))
			v := l.View()
			now[fmt.Sprint(g)], served[v.Version] = v.Sets[ident.CDS].Sum, now
			all = append(all, l)
		}
		for _, l := range all {
			l.Leave()
		}
	}
	step := func(i int) {
		g := i % groups
		m.change(Put("a", Cluster("a", 2+i/3)), PutFor(fmt.Sprint("own", g), Group(fmt.Sprint(g)), Cluster(fmt.Sprint("own", g), 2+i)))
	}
	for i := range 10 {
		step(i)
		see()
	}
	step(10)
	step(11) // no class has a client now
	var clients sync.WaitGroup
	for g := range 3 * groups {
		group := fmt.Sprint(g % groups)
		cl := m.Join(&proxy.Proxy{Cluster: group}, func() {})
		clients.Go(func() {
			cl.View()
			found := 0
			for v := range cl.Past() {
				if want, ok := served[v.Version][group]; ok {
					found++
					if v.Sets[ident.CDS].Sum != want {
						t.Errorf("group %s at %s: the past differs from the served content", group, v.Version)
					}
				}
			}
			if found < 5 {
				t.Errorf("group %s: the past has %d versions, want at least 5", group, found)
			}
		})
	}
	for i := range 4 {
		step(12 + i)
	}
	clients.Wait()
}

// New versions are served while clients join, watch, view and leave. No client
// misses a change that it watches, and every view is of one version.
func TestNoChangeIsMissed(t *testing.T) {
	m := newMesh(t)
	objects := []string{"a", "b", "c", "d"}
	// In every version, the endpoints of all names have the same port, and so
	// do the clusters of all groups have the same timeout.
	step := func(n int) {
		var changes []Change
		for _, o := range objects {
			changes = append(changes, Put("e"+o, Endpoints(o, uint32(1+n))), Put(o, Cluster(o, 1+n)))
		}
		if n%3 > 0 { // selectors come and go
			changes = append(changes, PutFor("g", Group("g"), Cluster("g", 1+n)))
		} else {
			changes = append(changes, Remove("g"))
		}
		m.change(changes...)
	}
	step(0)
	var clients sync.WaitGroup
	stop := make(chan struct{})
	var views [8][]View
	for i := range 8 {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		clients.Go(func() {
			for stopped := false; !stopped; {
				wake := make(chan struct{}, 1)
				cl := m.Join(&proxy.Proxy{Cluster: []string{"m", "g"}[i%2]}, func() {
					select {
					case wake <- struct{}{}:
					default:
					}
				})
				v := cl.View()
				views[i] = append(views[i], v)
				name := objects[r.IntN(len(objects))]
				cl.Watch(ident.EDS, Watch{Names: m.names.InternList([]string{name})})
				for range 1 + r.IntN(6) {
					select {
					case <-wake:
						next := cl.View()
						if next.Version.Less(v.Version) {
							t.Errorf("version %s after %s", next.Version, v.Version)
						}
						v = next
						views[i] = append(views[i], v)
					case <-stop:
						stopped = true
					}
				}
				select {
				case <-wake:
					v = cl.View()
				default:
				}
				if stopped { // no new version is served any more
					if !v.Sets[ident.EDS].Find(name).Same(cl.View().Sets[ident.EDS].Find(name)) {
						t.Errorf("a change of %s was missed at %s", name, v.Version)
					}
				}
				cl.Leave()
			}
		})
	}
	witness := m.join("m")
	sums := map[ident.Position][2]xds.Sum{} // of clusters for group "m", and of all endpoints
	for n := range 60 {
		v := witness.View()
		sums[v.Version] = [2]xds.Sum{v.Sets[ident.CDS].Sum, v.Sets[ident.EDS].Sum}
		step(n)
	}
	close(stop)
	clients.Wait()
	v := witness.View()
	sums[v.Version] = [2]xds.Sum{v.Sets[ident.CDS].Sum, v.Sets[ident.EDS].Sum}
	for i, seen := range views {
		for _, v := range seen {
			want, group := sums[v.Version], []string{"m", "g"}[i%2]
			if v.Sets[ident.EDS].Sum != want[1] || group == "m" && v.Sets[ident.CDS].Sum != want[0] {
				t.Fatalf("a view of version %s is not of that version", v.Version)
			}
		}
	}
}

// BenchmarkUpdate changes one service's endpoints while many clients watch the
// endpoints of all services. It measures from the PushContext to the last wake.
func BenchmarkUpdate(b *testing.B) {
	for _, clients := range []int{1, 500} {
		for _, classes := range []int{1, 100} {
			b.Run(fmt.Sprintf("clients=%d/classes=%d", clients, classes), func(b *testing.B) {
				var changes []Change
				var list []string
				for i := range 1001 {
					name := fmt.Sprint("c", i)
					changes, list = append(changes, Put("e"+name, Endpoints(name, 1))), append(list, name)
				}
				for i := range classes {
					changes = append(changes, PutFor(fmt.Sprint("own", i), Group(fmt.Sprint(i)), Endpoints(fmt.Sprint("own", i), 1)))
				}
				m := newMesh(b, changes...)
				subscription := m.names.InternList(list)
				var joined []*listener
				for i := range clients {
					l := m.join(fmt.Sprint(i % classes))
					l.Watch(ident.EDS, Watch{Names: subscription})
					joined = append(joined, l)
				}
				i := uint32(0)
				b.ReportAllocs()
				for b.Loop() {
					i++
					m.change(Put("ec7", Endpoints("c7", 1+i%60000)))
					for _, l := range joined {
						if !l.was() {
							b.Fatal("a client was not woken")
						}
						l.View()
					}
				}
			})
		}
	}
}
