package jury_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
)

const release = "envoy 1.40.0 (state of the world)"

// host is a virtual host of the RouteConfiguration that a row serves. The Envoys
// of the test reject it if it is bad.
type host struct {
	name    string
	domains []string
	value   int
	bad     bool
}

func (h host) marker() string {
	if h.bad {
		return fmt.Sprintf("bad-%s-%d", h.name, h.value)
	}
	return fmt.Sprintf("good-%s-%d", h.name, h.value)
}

// rowed is a builder's jury with a real fold, gate and log, and Envoys that get
// one RouteConfiguration.
type rowed struct {
	t     *testing.T
	now   time.Time
	fold  *fold.Fold
	world *world.World
	gate  *gate.Gate
	jury  *jury.Jury
	seq   uint64
	pseq  uint64
	log   []events.Record
	past  map[ident.Position]*world.World
	hosts []host
	// explain returns what an Envoy says about the bad virtual host at an index.
	explain func(index int, h string) string
	envoys  []*envoy
}

// envoy is a proxy with the routes that it applied, by domain.
type envoy struct {
	name, from string
	has        *routev3.RouteConfiguration
	sum        [16]byte
	at         ident.Position
	rejects    [16]byte
	message    string
}

func newRowed(t *testing.T, envoys int, explain func(int, string) string) *rowed {
	r := &rowed{
		t: t, now: start, fold: fold.New("one", fold.KindJudge{}), world: world.NewWorld(), gate: gate.New(), past: map[ident.Position]*world.World{},
		explain: explain,
	}
	r.jury = jury.New(r.gate, start.Add(-time.Hour), slog.New(slog.DiscardHandler))
	r.apply(&events.Segment{Epoch: 5, Build: "one"})
	shard := meshtest.Key("r").Shard()
	r.apply(&events.Begin{Shard: shard, Session: "s", Holder: "test"})
	r.apply(&events.Alive{Shard: shard, Session: "s", Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()})
	for i := range envoys {
		r.join(fmt.Sprint("e", i))
	}
	return r
}

func (r *rowed) join(name string) { r.envoys = append(r.envoys, &envoy{name: name, from: name}) }

func (r *rowed) apply(body events.Body) {
	r.t.Helper()
	r.seq++
	rec := events.Record{Seq: r.seq, Event: events.Event{ID: fmt.Sprint(r.seq), Body: body}}
	r.log = append(r.log, rec)
	change, _, err := r.fold.Apply(rec, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	next, keys, err := r.world.Apply(change)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.gate.Build(next, keys); err != nil {
		r.t.Fatal(err)
	}
	r.world = next
	r.past[r.fold.Position()] = next
}

func (r *rowed) routes() *routev3.RouteConfiguration {
	c := &routev3.RouteConfiguration{Name: "r"}
	for _, h := range r.hosts {
		c.VirtualHosts = append(c.VirtualHosts, &routev3.VirtualHost{Name: h.name, Domains: h.domains, Routes: []*routev3.Route{{
			Name:   h.marker(),
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
		}}})
	}
	return c
}

// set offers the RouteConfiguration with these virtual hosts.
func (r *rowed) set(hosts ...host) {
	r.t.Helper()
	r.hosts = hosts
	v, err := world.UnmarshalValue(meshtest.Put("r", r.routes()).Row().Value)
	if err != nil {
		r.t.Fatal(err)
	}
	r.pseq++
	r.apply(&events.Object{Key: meshtest.Key("r"), Op: events.Put, Value: ident.Value{Type: v.Type, Bytes: v.Bytes}, Session: "s", Pseq: r.pseq, Low: r.pseq})
}

func (r *rowed) class() index.ProxyClass {
	return index.Classify(index.NewPushContext(r.world), &proxy.Proxy{}).Only(ident.RDS)
}

// sent returns the RouteConfiguration that the Envoys are sent, as every frontend
// makes it from the world.
func (r *rowed) sent() (*routev3.RouteConfiguration, [16]byte) {
	r.t.Helper()
	pc := index.NewPushContext(r.world)
	c := xds.NewCatalog(pc)
	set, _ := c.Replace(ident.RDS, c.Set(r.class(), ident.RDS), pc.Replacements(ident.RDS, release))
	one := set.Find("r")
	if one == nil {
		return nil, [16]byte{}
	}
	m := &routev3.RouteConfiguration{}
	if err := proto.Unmarshal(one.Value(), m); err != nil {
		r.t.Fatal(err)
	}
	return m, one.Sum
}

// answer lets every Envoy answer what it is sent, and reports whether one rejects
// it.
func (r *rowed) answer() (rejected bool) {
	m, sum := r.sent()
	bad := slices.IndexFunc(m.GetVirtualHosts(), func(h *routev3.VirtualHost) bool {
		return slices.ContainsFunc(h.GetRoutes(), func(x *routev3.Route) bool { return strings.HasPrefix(x.GetName(), "bad") })
	})
	for _, e := range r.envoys {
		e.rejects = [16]byte{}
		if bad < 0 {
			e.has, e.sum, e.at = m, sum, r.fold.Position()
			continue
		}
		rejected, e.rejects = true, sum
		e.message = r.explain(bad, m.GetVirtualHosts()[bad].GetRoutes()[0].GetName())
	}
	return rejected
}

// round lets the Envoys answer and the jury decide. It reports whether something
// happened.
func (r *rowed) round() bool {
	r.t.Helper()
	_, sum := r.sent()
	rejected := r.answer()
	v := &reportv1.Verdict{TypeUrl: ident.RDS.URL(), Name: "r", Sum: sum[:], Client: release}
	for _, e := range r.envoys {
		if e.rejects != sum {
			v.Applied++
			continue
		}
		v.Rejected++
		v.Rejectors = append(v.Rejectors, &reportv1.Rejector{Proxy: e.name, Address: e.from})
		v.Message, v.Class = e.message, r.class().Released([ident.ResourceTypes]string{}).Encode()
		if e.has != nil {
			v.GoodSum, v.Good = e.sum[:], store.VersionProto(e.at)
		}
	}
	report := &reportv1.FrontendReport{Frontend: "f0"}
	if rejected {
		report.Verdicts = append(report.Verdicts, v)
	}
	r.jury.Hear(r.now, report)
	r.jury.Suspect(r.now, r.fold)
	r.now = r.now.Add(3 * time.Second)
	proposed, err := r.jury.Propose(r.now, r.fold, func(p ident.Position) (*world.World, error) {
		if w := r.past[p]; w != nil {
			return w, nil
		}
		return nil, store.ErrNotFound
	})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range proposed {
		r.apply(o)
	}
	return rejected || len(proposed) > 0
}

// settle runs rounds until nothing happens.
func (r *rowed) settle() {
	r.t.Helper()
	for range 20 {
		if !r.round() {
			return
		}
	}
	r.t.Fatalf("the Envoys still reject something after 20 rounds: %v", r.served())
}

// served returns what answers each domain at the first Envoy.
func (r *rowed) served() map[string]string {
	all := map[string]string{}
	for _, h := range r.envoys[0].has.GetVirtualHosts() {
		text := h.GetRoutes()[0].GetName()
		if s := h.GetRoutes()[0].GetDirectResponse().GetStatus(); s != 200 {
			text = fmt.Sprint(s)
		}
		for _, d := range h.GetDomains() {
			if _, twice := all[d]; twice {
				r.t.Fatalf("domain %s is there twice: Envoy rejects that", d)
			}
			all[d] = text
		}
	}
	return all
}

func (r *rowed) expect(what string, want map[string]string) {
	r.t.Helper()
	r.settle()
	if got := fmt.Sprint(r.served()); got != fmt.Sprint(want) {
		r.t.Errorf("%s: served %s, want %v", what, got, want)
	}
}

func ok(name string, value int, domains ...string) host {
	if domains == nil {
		domains = []string{name + ".example"}
	}
	return host{name, domains, value, false}
}

func broken(name string, value int, domains ...string) host {
	h := ok(name, value, domains...)
	h.bad = true
	return h
}

// How Envoys explain a rejection.
func names(_ int, route string) string { return "regex '" + route + "' is too large" }
func indexes(i int, _ string) string {
	return fmt.Sprintf("Proto constraint validation failed (RouteConfigurationValidationError.VirtualHosts[%d]: embedded message failed validation)", i)
}
func nothing(int, string) string { return "it cannot be used" }

// A rejected virtual host keeps its domains, with what they had before or with 503,
// and every other virtual host flows (section 5, item 1).
func TestRejectedPieces(t *testing.T) {
	for name, explain := range map[string]func(int, string) string{"named": names, "by index": indexes, "unnamed": nothing} {
		t.Run(name, func(t *testing.T) {
			r := newRowed(t, 2, explain)
			r.set(ok("a", 1), ok("b", 1))
			r.expect("all good", map[string]string{"a.example": "good-a-1", "b.example": "good-b-1"})
			r.set(ok("a", 1), broken("b", 2))
			r.expect("one is bad", map[string]string{"a.example": "good-a-1", "b.example": "good-b-1"})
			r.set(ok("a", 2), broken("b", 2), ok("c", 1))
			r.expect("others change and come", map[string]string{"a.example": "good-a-2", "b.example": "good-b-1", "c.example": "good-c-1"})
			r.set(ok("a", 2), broken("b", 2), broken("c", 2))
			r.expect("a second one is bad", map[string]string{"a.example": "good-a-2", "b.example": "good-b-1", "c.example": "good-c-1"})
			r.set(ok("a", 2), broken("b", 3), ok("c", 3), broken("d", 1))
			r.expect("the bad one changes and is bad, a new one never was good",
				map[string]string{"a.example": "good-a-2", "b.example": "good-b-1", "c.example": map[bool]string{true: "good-c-1", false: "good-c-3"}[name == "unnamed"], "d.example": "503"})
			r.set(ok("a", 3), ok("b", 4), ok("c", 3), ok("d", 2))
			r.expect("all are repaired", map[string]string{"a.example": "good-a-3", "b.example": "good-b-4", "c.example": "good-c-3", "d.example": "good-d-2"})
			if q := r.fold.Quarantines(); len(q) > 0 {
				t.Errorf("in quarantine: %v", q)
			}
		})
	}
}

// A virtual host that is split, renamed or merged finds what its domains had
// before, and takes no domain that another one has now.
func TestSplitPieces(t *testing.T) {
	r := newRowed(t, 2, names)
	r.set(ok("a", 1, "a.example", "b.example", "c.example"), ok("z", 1))
	r.settle()
	r.set(broken("x", 2, "a.example", "new.example"), ok("b", 1, "b.example"), ok("z", 2))
	r.expect("split", map[string]string{
		"a.example": "good-a-1", "new.example": "503", "b.example": "good-b-1", "z.example": "good-z-2",
	})
	r.set(ok("b", 1, "b.example"), ok("z", 3))
	r.expect("the bad one is removed", map[string]string{"b.example": "good-b-1", "z.example": "good-z-3"})
	if q := r.fold.Quarantines(); len(q) > 0 {
		t.Errorf("in quarantine: %v", q)
	}
}

// The pieces of a resource that is too large to be a replacement itself have their
// last good content too, and only those that changed are blamed.
func TestPiecesOfLargeResource(t *testing.T) {
	for name, explain := range map[string]func(int, string) string{"named": names, "unnamed": nothing} {
		t.Run(name, func(t *testing.T) {
			r := newRowed(t, 2, explain)
			hosts := []host{ok("a", 1)}
			want := map[string]string{"a.example": "good-a-1"}
			for i := range 300 {
				h := ok(fmt.Sprintf("h%03d", i), 1, fmt.Sprintf("h%03d.%s.example", i, strings.Repeat("x", 1<<10)))
				hosts = append(hosts, h)
				want[h.domains[0]] = h.marker()
			}
			r.set(hosts...)
			r.expect("all good", want)
			hosts = slices.Clone(hosts)
			hosts[0] = broken("a", 2)
			r.set(hosts...)
			r.expect("one is bad", want)
		})
	}
}

// Envoys that never had a good content get 503 for the domains of a bad virtual
// host, and all others.
func TestFreshProxies(t *testing.T) {
	r := newRowed(t, 1, names)
	r.set(ok("a", 1), broken("b", 1))
	r.expect("fresh", map[string]string{"a.example": "good-a-1", "b.example": "503"})
	r.join("late")
	r.set(ok("a", 2), broken("b", 1))
	r.expect("later", map[string]string{"a.example": "good-a-2", "b.example": "503"})
}

// Random schedules of changes: whatever the Envoys name, the rejected content never
// stays, no domain is lost, and where they name the culprit all others flow.
func TestRandomPieces(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		kind := rnd.IntN(3)
		r := newRowed(t, 1+rnd.IntN(2), []func(int, string) string{names, indexes, nothing}[kind])
		value := 0
		next := map[string]host{}
		good := map[string]map[string]bool{} // by domain, every good content that it had
		for range 12 {
			for range 1 + rnd.IntN(3) {
				name := string(rune('a' + rnd.IntN(5)))
				if value++; rnd.IntN(5) == 0 {
					delete(next, name)
					continue
				}
				domains := []string{name + ".example"}
				if rnd.IntN(3) == 0 {
					domains = append(domains, fmt.Sprintf("%s%d.example", name, rnd.IntN(2)))
				}
				next[name] = host{name, domains, value, rnd.IntN(3) == 0}
			}
			var hosts []host
			for _, name := range slices.Sorted(func(yield func(string) bool) {
				for n := range next {
					if !yield(n) {
						return
					}
				}
			}) {
				hosts = append(hosts, next[name])
			}
			r.set(hosts...)
			r.settle()
			served := r.served()
			want := 0
			for _, h := range hosts {
				for _, d := range h.domains {
					want++
					got, known := served[d]
					switch {
					case !known:
						t.Fatalf("seed %d: %s is not served: %v", seed, d, served)
					case got == h.marker() && !h.bad:
						if good[d] == nil {
							good[d] = map[string]bool{}
						}
						good[d][got] = true
					case !h.bad && kind < 2:
						t.Fatalf("seed %d: %s has %s, want %s, which no Envoy rejects", seed, d, got, h.marker())
					case got != "503" && !good[d][got]:
						t.Fatalf("seed %d: %s has %s, which it never had before", seed, d, got)
					}
				}
			}
			if len(served) != want {
				t.Fatalf("seed %d: served %v, want the domains of %v", seed, served, hosts)
			}
		}
		for name, h := range next {
			value++
			next[name] = host{h.name, h.domains, value, false}
		}
		var hosts []host
		for _, h := range next {
			hosts = append(hosts, h)
		}
		r.set(hosts...)
		r.settle()
		if q := r.fold.Quarantines(); len(q) > 0 {
			t.Fatalf("seed %d: all is good, and in quarantine is %v", seed, q)
		}
		r.replays(seed)
	}
}

// replays checks that the same log makes the same world and bytes again.
func (r *rowed) replays(seed uint64) {
	again := fold.New("one", fold.KindJudge{})
	w := world.NewWorld()
	for _, rec := range r.log {
		change, _, err := again.Apply(rec, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		if w, _, err = w.Apply(change); err != nil {
			r.t.Fatal(err)
		}
	}
	_, sum := r.sent()
	r.world = w
	if _, replayed := r.sent(); replayed != sum {
		r.t.Errorf("seed %d: the replayed log serves other bytes", seed)
	}
}
