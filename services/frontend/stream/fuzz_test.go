package stream_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

// FuzzStream drives a stream with random requests, views and times, in either
// protocol. The stream must not panic, loop, or send older content after newer.
// In the end, a client that accepts everything has all that the view holds and
// nothing else, and a client that rejects some contents has all others.
func FuzzStream(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(noise(seed, 200))
	}
	f.Fuzz(func(t *testing.T, b []byte) { chaos(t, b) })
}

func TestRandomStreams(t *testing.T) {
	for seed := range uint64(3000) {
		chaos(t, noise(seed, 40+int(seed%400)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// chaosClient sends the requests that the input picks.
type chaosClient struct {
	t      *testing.T
	bytes  []byte
	now    time.Time
	stream *stream.Stream
	views  []content.View
	number map[xds.Sum]int // of contents: greater is newer
	next   int

	queue   [ident.ResourceTypes][]stream.Response // not answered yet
	version [ident.ResourceTypes]string
	nonce   [ident.ResourceTypes]string
	names   [ident.ResourceTypes][]string
	asked   [ident.ResourceTypes]bool
	newest  map[string]int // number of the newest content sent, by type and name
	nacked  bool
	trace   []string

	grpc, delta bool
	only        *ident.ResourceType
	// odd: the client may send invalid requests, so its state is unknown.
	odd bool
	// strict: the client always rejects the same contents, and accepts all others.
	strict bool
	// void holds the nonces of responses that nonsense answered, or skipped, before the
	// client read them: it does not apply them.
	void map[string]bool
	// crossed: the client requested a type while a response of that type was
	// under way; the stream may ignore its ACK.
	crossed bool
	// keys says where the key of a Secret is; Secrets without one need none.
	keys map[xds.Sum]stream.KeyState
	// has holds the client's resources by type and name; all is set for the
	// types that it subscribes to with a wildcard.
	has [ident.ResourceTypes]map[string]xds.Sum
	all [ident.ResourceTypes]bool
}

func chaos(t *testing.T, b []byte) {
	c := &chaosClient{
		t: t, bytes: b, now: time.Unix(1_000_000, 0), number: map[xds.Sum]int{}, newest: map[string]int{},
		keys: map[xds.Sum]stream.KeyState{}, void: map[string]bool{},
	}
	for t := range ident.ResourceTypes {
		c.has[t] = map[string]xds.Sum{}
	}
	c.world()
	c.grpc, c.delta, c.odd = c.pick(5) == 0, c.pick(2) == 0, c.pick(3) == 0
	c.grpc = c.grpc && !c.delta
	c.strict = !c.odd && c.pick(3) == 0
	cfg := stream.Config{GRPC: c.grpc, Delta: c.delta, Linger: 30 * time.Second, Past: func(yield func(content.View) bool) {
		for i := len(c.views) - 2; i >= 0; i-- {
			if !yield(c.views[i]) {
				return
			}
		}
	}, Secret: func(r *xds.Resource) (*xds.Resource, stream.KeyState) {
		return &xds.Resource{Name: r.Name, Sum: r.Sum, Pieces: xds.PiecesOf(&xds.Encoded{})}, c.keys[r.Sum]
	}}
	if c.pick(6) == 0 {
		only := c.types()[c.pick(len(c.types()))]
		cfg.Only, c.only = &only, &only
	}
	c.note("grpc %v delta %v odd %v strict %v only %v", c.grpc, c.delta, c.odd, c.strict, cfg.Only)
	c.stream = stream.New(cfg, c.views[0])
	for len(c.bytes) > 0 && !t.Failed() {
		c.step()
	}
	c.finish(false)
	if t.Failed() {
		t.Log(strings.Join(c.trace, "\n"))
	}
}

// pick takes a number below n from the input.
func (c *chaosClient) pick(n int) int {
	if len(c.bytes) == 0 {
		return 0
	}
	b := c.bytes[0]
	c.bytes = c.bytes[1:]
	return int(b) % n
}

func (c *chaosClient) note(format string, args ...any) {
	c.trace = append(c.trace, fmt.Sprintf(format, args...))
}

func (c *chaosClient) send(r stream.Request) {
	if err := c.stream.Request(c.now, r); err != nil {
		c.t.Error(err)
	}
}

// types returns the types that the client knows: a gRPC client knows no Secrets and no
// filters (G2).
func (c *chaosClient) types() []ident.ResourceType {
	all := []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS}
	if !c.grpc {
		all = append(all, ident.SDS, ident.ECDS)
	}
	return all
}

// moveKeys moves the keys of some Secrets.
func (c *chaosClient) moveKeys(to func() stream.KeyState) {
	var names []string
	for _, v := range c.views {
		for _, r := range v.Sets[ident.SDS].Resources {
			if r.Key() != nil {
				c.keys[r.Sum] = to()
				names = append(names, r.Name)
			}
		}
	}
	c.note("keys move")
	c.stream.KeysChanged(names)
}

func (c *chaosClient) step() {
	t := c.types()[c.pick(len(c.types()))]
	switch c.pick(13) {
	case 12:
		c.moveKeys(func() stream.KeyState { return stream.KeyState(c.pick(3)) })
	case 0, 1:
		c.world()
		c.stream.Update(c.now, c.views[len(c.views)-1])
	case 2, 3:
		c.ask(t)
	case 4, 5, 6:
		c.answer(t, c.pick(6) == 0)
	case 7:
		c.now = c.now.Add([]time.Duration{time.Millisecond, time.Second, 31 * time.Second}[c.pick(3)])
	case 8: // another subscription
		if c.asked[t] {
			c.resubscribe(t)
		}
	case 9: // invalid requests
		if !c.odd {
			return
		}
		c.nonsense(t)
	case 10:
		if c.stream.WantsHead() {
			c.stream.HeadIs(c.views[len(c.views)-1].Version)
		} else {
			c.stream.HeadAway()
		}
	case 11:
		return // the client reads no response now
	}
	c.drain(c.pick(4))
}

// world makes a new view.
func (c *chaosClient) world() {
	v := content.View{Version: ident.Position{Epoch: 1, Seq: uint64(len(c.views) + 1)}}
	for t := range ident.ResourceTypes {
		v.Sets[t] = &xds.Set{}
		var old *xds.Set
		if len(c.views) > 0 {
			old = c.views[len(c.views)-1].Sets[t]
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			var r *xds.Resource
			if old != nil {
				r = old.Find(name)
			}
			switch how := c.pick(8); {
			case how == 0:
				r = nil
			case how == 1 || old == nil:
				r = c.resource(t, name)
			}
			if r != nil {
				v.Sets[t].Resources = append(v.Sets[t].Resources, r)
				v.Sets[t].Sum = v.Sets[t].Sum.Add(r.Sum)
			}
		}
		if old != nil && old.Sum == v.Sets[t].Sum {
			v.Sets[t] = old
		}
	}
	c.views = append(c.views, v)
	c.note("world %d", len(c.views))
}

func (c *chaosClient) resource(t ident.ResourceType, name string) *xds.Resource {
	c.next++
	var facts piece.Facts
	r := &xds.Resource{Name: name, Sum: xds.Absent(fmt.Sprint(t, name, c.next))}
	c.number[r.Sum] = c.next
	switch t {
	case ident.CDS:
		facts.SlowWarm = c.pick(4) == 0
		if !facts.SlowWarm {
			facts.Endpoints = name
		}
	case ident.SDS:
		if c.pick(2) == 0 {
			facts.Key = &piece.Key{}
			c.keys[r.Sum] = stream.KeyState(c.pick(3))
		}
	case ident.ECDS, ident.LDS, ident.RDS:
		facts.Clusters = []string{[]string{"a", "b", "c", "d"}[c.pick(4)]}
	}
	if (t == ident.CDS || t == ident.LDS) && c.pick(3) == 0 {
		facts.Secrets = []string{[]string{"a", "b", "c", "d"}[c.pick(4)]}
	}
	r.Pieces = xds.PiecesOf(&xds.Encoded{Facts: facts})
	return r
}

// drain receives up to n responses.
func (c *chaosClient) drain(n int) {
	for range n {
		r, ok := c.stream.Next(c.now)
		if !ok {
			return
		}
		c.take(r)
	}
}

func (c *chaosClient) take(r stream.Response) {
	var words []string
	for _, res := range r.Resources {
		key := r.Type.String() + " " + res.Name
		n := c.number[res.Sum]
		words = append(words, fmt.Sprintf("%s@%d", res.Name, n))
		if n != 0 && n < c.newest[key] && !c.nacked {
			c.t.Errorf("%s@%d is sent after @%d", key, n, c.newest[key])
		}
		c.newest[key] = max(c.newest[key], n)
	}
	c.note("< %s %v removed %v version=%s nonce=%s", r.Type, words, r.Removed, r.Version, r.Nonce)
	if r.Version == "" || r.Nonce == "" {
		c.t.Errorf("a response without version or nonce (G15)")
	}
	if !slices.IsSortedFunc(r.Resources, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) }) {
		c.t.Errorf("not sorted: %v", words)
	}
	c.queue[r.Type] = append(c.queue[r.Type], r)
}

// apply adds the resources in a response to the client's, if it subscribes to
// them.
func (c *chaosClient) apply(r stream.Response) {
	if len(r.Removed) > 0 && (!c.delta || r.Type == ident.EDS || r.Type == ident.RDS) {
		c.t.Errorf("%s removed %v (E1)", r.Type, r.Removed)
	}
	if !c.delta && (r.Type == ident.CDS || r.Type == ident.LDS) {
		clear(c.has[r.Type])
	}
	if r.Type == ident.SDS && len(r.Resources) > 1 {
		c.t.Errorf("%d Secrets in a response (SDS-1)", len(r.Resources))
	}
	for _, res := range r.Resources {
		if res.Key() != nil {
			c.t.Errorf("Secret %s is sent without its key", res.Name)
		}
		if res.Pieces == nil {
			c.t.Errorf("%s %s has no content", r.Type, res.Name)
		}
		wild := !c.delta && (r.Type == ident.CDS || r.Type == ident.LDS) && len(c.names[r.Type]) == 0
		if wild || c.all[r.Type] || c.delta && !c.asked[r.Type] || slices.Contains(c.names[r.Type], res.Name) {
			c.has[r.Type][res.Name] = res.Sum
		}
	}
	for _, name := range r.Removed {
		if _, has := c.has[r.Type][name]; has && r.Type == ident.ECDS {
			c.t.Errorf("the filter %s is removed from a client that has it (E44)", name)
		}
		delete(c.has[r.Type], name)
	}
}

// compare reports where the client's resources differ from the view.
func (c *chaosClient) compare() {
	view := c.views[len(c.views)-1]
	for t := range ident.ResourceTypes {
		if !c.asked[t] || c.only != nil && t != *c.only {
			continue
		}
		whole := t == ident.CDS || t == ident.LDS
		wild := c.all[t] || !c.delta && whole && len(c.names[t]) == 0 && !c.grpc
		if !c.delta && whole && len(c.names[t]) == 0 {
			continue // all or none, depending on earlier requests (G4)
		}
		for _, r := range view.Sets[t].Resources {
			if c.strict && c.isBad(r) {
				continue // held back
			}
			if (wild || slices.Contains(c.names[t], r.Name)) && c.has[t][r.Name] != r.Sum {
				c.t.Errorf("%s %s: the client has %d, not %d", t, r.Name, c.number[c.has[t][r.Name]], c.number[r.Sum])
			}
		}
		for name, sum := range c.has[t] {
			// Requests would go on to endpoints that are gone (I16).
			if t == ident.EDS && slices.Contains(c.names[t], name) && view.Sets[t].Find(name) == nil && sum != xds.Absent(name) && c.waitsFor(name) {
				c.t.Errorf("EDS %s is gone, but the client has it", name)
			}
			// A cluster may linger for a removed route that the client still uses.
			if whole && view.Sets[t].Find(name) == nil && (t == ident.LDS || c.stream.Status().Lingering == 0) {
				c.t.Errorf("%s %s was removed, but the client has it", t, name)
			}
		}
	}
}

// waitsFor reports whether the client has a cluster that it subscribes to, and that has
// these endpoints.
func (c *chaosClient) waitsFor(endpoints string) bool {
	cluster := c.views[len(c.views)-1].Sets[ident.CDS].Find(endpoints)
	return cluster != nil && cluster.Endpoints() == endpoints && c.has[ident.CDS][endpoints] == cluster.Sum &&
		(c.all[ident.CDS] || slices.Contains(c.names[ident.CDS], endpoints)) && c.only == nil
}

// finish accepts every response until the stream is idle, once as the keys are and once
// with all of them here, and then checks what the client has.
func (c *chaosClient) finish(here bool) {
	for round := 0; ; round++ {
		if round == 200 {
			c.t.Error("the stream does not become idle")
			return
		}
		before := len(c.trace)
		c.drain(100)
		for t := range ident.ResourceTypes {
			for len(c.queue[t]) > 0 {
				c.answer(t, false)
			}
		}
		if len(c.trace) > before {
			continue
		}
		at := c.stream.Wake()
		if at.IsZero() {
			break
		}
		if at.After(c.now) {
			c.now = at
		} else if _, ok := c.stream.Next(c.now); !ok && !c.stream.Wake().After(c.now) && !c.stream.Wake().IsZero() {
			c.t.Error("nothing is due, but Wake returns a time that has passed")
			return
		}
	}
	if !here {
		c.moveKeys(func() stream.KeyState { return stream.KeyHere })
		c.finish(true)
		return
	}
	if c.nacked && !c.strict {
		return
	}
	for _, st := range c.stream.Status().Types {
		if !st.AckedAll && (!c.nacked || c.strict && len(st.HeldBack) == 0) && !c.crossed {
			c.t.Errorf("%s is not acknowledged", st.Type)
		}
	}
	if !c.odd {
		c.compare()
	}
}
