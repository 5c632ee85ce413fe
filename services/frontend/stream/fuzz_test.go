package stream_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
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
		keys: map[xds.Sum]stream.KeyState{},
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
		only := ident.ResourceType(c.pick(int(c.types())))
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

// types returns how many types the client knows: a gRPC client knows no Secrets (G2).
func (c *chaosClient) types() ident.ResourceType {
	if c.grpc {
		return ident.SDS
	}
	return ident.ResourceTypes
}

// moveKeys moves the keys of some Secrets.
func (c *chaosClient) moveKeys(to func() stream.KeyState) {
	for _, v := range c.views {
		for _, r := range v.Sets[ident.SDS].Resources {
			if r.Key() != nil {
				c.keys[r.Sum] = to()
			}
		}
	}
	c.note("keys move")
	c.stream.KeysChanged()
}

func (c *chaosClient) step() {
	t := ident.ResourceType(c.pick(int(c.types())))
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
		r := stream.Request{
			TypeURL: []string{"", "x", t.URL()}[c.pick(3)], Nonce: []string{"", "1", "7", "x"}[c.pick(4)],
			Version: "?", Names: names.Of(c.someNames(t)...), Rejected: c.pick(4) == 0, Error: "a b",
			Unsubscribe: names.Of(c.someNames(t)...),
		}
		c.nacked = c.nacked || r.Rejected
		c.note("> nonsense %+v", r)
		c.send(r)
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
	case ident.LDS, ident.RDS:
		facts.Clusters = []string{[]string{"a", "b", "c", "d"}[c.pick(4)]}
	}
	r.Pieces = xds.PiecesOf(&xds.Encoded{Facts: facts})
	return r
}

func (c *chaosClient) someNames(t ident.ResourceType) []string {
	if (t == ident.CDS || t == ident.LDS) && c.pick(2) == 0 {
		return nil
	}
	var names []string
	for _, n := range []string{"a", "b", "c", "x"} {
		if c.pick(2) == 0 {
			names = append(names, n)
		}
	}
	return names
}

func (c *chaosClient) ask(t ident.ResourceType) {
	if c.asked[t] {
		return
	}
	c.asked[t] = true
	c.names[t] = c.someNames(t)
	set := c.views[c.pick(len(c.views))].Sets[t]
	if c.delta {
		c.askDelta(t, set)
		return
	}
	subscribed := new(names.Table).InternList(c.names[t]).SumIn(set).String()
	version := []string{"", set.Sum.String(), subscribed, "ffff", "nack-2-ff"}[c.pick(5)]
	wild := (t == ident.CDS || t == ident.LDS) && len(c.names[t]) == 0
	if c.strict && slices.ContainsFunc(set.Resources, c.isBad) {
		version = ""
	}
	for _, r := range set.Resources {
		if wild && version == set.Sum.String() || slices.Contains(c.names[t], r.Name) && version == subscribed {
			c.has[t][r.Name] = r.Sum
		}
	}
	c.version[t] = version
	c.request(t, "", "")
}

// askDelta sends the first request of a type, with the versions of some
// resources in set.
func (c *chaosClient) askDelta(t ident.ResourceType, set *xds.Set) {
	c.all[t] = (t == ident.CDS || t == ident.LDS) && (len(c.names[t]) == 0 || c.pick(4) == 0)
	sub := c.names[t]
	if c.all[t] && len(sub) > 0 {
		sub = append([]string{"*"}, sub...)
	}
	r := stream.Request{TypeURL: t.URL(), Names: names.Of(sub...)}
	c.crossed = c.crossed || len(c.queue[t]) > 0
	how := c.pick(4)
	for _, name := range slices.Sorted(maps.Keys(c.has[t])) { // sent before it was requested
		if how = 0; c.all[t] || slices.Contains(c.names[t], name) {
			r.Initial = r.Initial.With(name, c.has[t][name].String())
		} else {
			delete(c.has[t], name)
		}
	}
	for _, res := range set.Resources {
		if how == 0 || c.strict && c.isBad(res) || !c.all[t] && !slices.Contains(c.names[t], res.Name) || how == 1 && c.pick(2) == 0 {
			continue
		}
		sum := res.Sum
		if how == 2 && c.pick(4) == 0 {
			sum = xds.Absent(fmt.Sprint("unknown", c.next))
		}
		c.has[t][res.Name] = sum
		r.Initial = r.Initial.With(res.Name, sum.String())
	}
	c.note("> %s ask %v all %v has %v", t, sub, c.all[t], c.has[t])
	c.send(r)
}

// resubscribe changes the subscription.
func (c *chaosClient) resubscribe(t ident.ResourceType) {
	if !c.delta {
		c.names[t] = c.someNames(t)
		named := len(c.names[t]) > 0
		for name := range c.has[t] {
			if named && !slices.Contains(c.names[t], name) {
				delete(c.has[t], name)
			}
		}
		c.request(t, c.nonce[t], "")
		return
	}
	var add, drop []string
	for _, n := range c.someNames(t) {
		if c.pick(2) == 0 {
			add = append(add, n)
			if !slices.Contains(c.names[t], n) {
				c.names[t] = append(slices.Clone(c.names[t]), n)
			}
			continue
		}
		drop = append(drop, n)
		c.names[t] = slices.DeleteFunc(slices.Clone(c.names[t]), func(have string) bool { return have == n })
		if !c.all[t] {
			delete(c.has[t], n)
		}
	}
	c.note("> %s sub %v unsub %v", t, add, drop)
	c.send(stream.Request{TypeURL: t.URL(), Names: names.Of(add...), Unsubscribe: names.Of(drop...)})
}

func (c *chaosClient) request(t ident.ResourceType, nonce, rejected string) {
	c.note("> %s version=%q nonce=%q names=%v rejected=%q", t, c.version[t], nonce, c.names[t], rejected)
	r := stream.Request{TypeURL: t.URL(), Nonce: nonce, Rejected: rejected != "", Error: rejected}
	if !c.delta {
		r.Version, r.Names = c.version[t], names.Of(c.names[t]...)
	}
	c.send(r)
}

func (c *chaosClient) answer(t ident.ResourceType, reject bool) {
	if len(c.queue[t]) == 0 {
		return
	}
	r := c.queue[t][0]
	c.queue[t] = c.queue[t][1:]
	c.asked[t] = c.asked[t] || !c.delta
	c.nonce[t] = r.Nonce
	if c.strict {
		if bad := c.bad(r); len(bad) > 0 {
			c.refuse(r, bad)
			return
		}
		reject = false
	}
	if !reject {
		c.apply(r)
		c.version[t] = r.Version
		c.request(t, r.Nonce, "")
		return
	}
	c.nacked = true
	c.request(t, r.Nonce, []string{"b: is bad", "no name given", "a, c"}[c.pick(3)])
}

// bad returns the names in a response whose contents a strict client rejects.
func (c *chaosClient) bad(r stream.Response) (bad []string) {
	for _, res := range r.Resources {
		if c.isBad(res) {
			bad = append(bad, res.Name)
		}
	}
	return bad
}

func (c *chaosClient) isBad(r *xds.Resource) bool {
	return c.number[r.Sum] != 0 && c.number[r.Sum]%4 == 0
}

// refuse rejects a response because of its bad resources. The client may have
// applied none of the others, all of them, or those before the first bad one
// (E11, E12, E13).
func (c *chaosClient) refuse(r stream.Response, bad []string) {
	c.nacked = true
	message := "Unable to parse"
	if c.pick(3) == 1 {
		message = "Error adding/updating " + strings.Join(bad, ": why, ") + ": why"
	}
	how := c.pick(3)
	for _, res := range r.Resources {
		if how == 0 || how == 1 && res.Name >= bad[0] {
			break
		}
		if !slices.Contains(bad, res.Name) && (c.all[r.Type] || slices.Contains(c.names[r.Type], res.Name)) {
			c.has[r.Type][res.Name] = res.Sum
		}
	}
	c.request(r.Type, r.Nonce, message)
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
		for name := range c.has[t] {
			// A cluster may linger for a removed route that the client still uses.
			if whole && view.Sets[t].Find(name) == nil && (t == ident.LDS || c.stream.Status().Lingering == 0) {
				c.t.Errorf("%s %s was removed, but the client has it", t, name)
			}
		}
	}
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
		if !st.AckedAll && !c.nacked && !c.crossed {
			c.t.Errorf("%s is not acknowledged", st.Type)
		}
	}
	if !c.odd {
		c.compare()
	}
}
