package stream_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/services/internal/xds/piece"
	"meshlog.dev/store"
)

// FuzzStream lets a client, what is served, and the time do anything: the
// stream never panics, never loops, never sends older content after newer, and
// in the end a client that accepts everything has everything.
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

// chaosClient is a client that may do anything.
type chaosClient struct {
	t      *testing.T
	bytes  []byte
	now    time.Time
	stream *stream.Stream
	views  []content.View
	number map[xds.Sum]int // of contents: greater is newer
	next   int

	queue   [model.ResourceTypes][]stream.Response // not answered yet
	version [model.ResourceTypes]string
	nonce   [model.ResourceTypes]string
	names   [model.ResourceTypes][]string
	asked   [model.ResourceTypes]bool
	newest  map[string]int // by type and name: what was sent
	nacked  bool
	trace   []string
}

func chaos(t *testing.T, b []byte) {
	c := &chaosClient{
		t: t, bytes: b, now: time.Unix(1_000_000, 0), number: map[xds.Sum]int{}, newest: map[string]int{},
	}
	c.world()
	cfg := stream.Config{GRPC: c.pick(5) == 0, Linger: 30 * time.Second, Past: func(yield func(content.View) bool) {
		for i := len(c.views) - 2; i >= 0; i-- {
			if !yield(c.views[i]) {
				return
			}
		}
	}}
	c.stream = stream.New(cfg, c.views[0])
	for len(c.bytes) > 0 && !t.Failed() {
		c.step()
	}
	c.finish(cfg.GRPC)
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

func (c *chaosClient) step() {
	t := model.ResourceType(c.pick(int(model.ResourceTypes)))
	switch c.pick(12) {
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
			c.names[t] = c.someNames(t)
			c.request(t, c.nonce[t], "")
		}
	case 9: // nonsense
		r := stream.Request{
			TypeURL: []string{"", "x", t.URL()}[c.pick(3)], Nonce: []string{"", "1", "7", "x"}[c.pick(4)],
			Version: "?", Names: names.Of(c.someNames(t)...), Rejected: c.pick(4) == 0, Error: "a b",
		}
		c.nacked = c.nacked || r.Rejected
		c.note("> nonsense %+v", r)
		c.stream.Request(c.now, r)
	case 10:
		if c.stream.WantsHead() {
			c.stream.HeadConfirmed(c.now)
		} else {
			c.stream.HeadAway()
		}
	case 11:
		return // no look at what is to be sent
	}
	c.drain(c.pick(4))
}

// world changes what is served.
func (c *chaosClient) world() {
	v := content.View{Version: store.Version{Epoch: 1, Seq: uint64(len(c.views) + 1)}}
	for t := range model.ResourceTypes {
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

func (c *chaosClient) resource(t model.ResourceType, name string) *xds.Resource {
	c.next++
	var facts piece.Facts
	r := &xds.Resource{Name: name, Sum: xds.Absent(fmt.Sprint(t, name, c.next))}
	c.number[r.Sum] = c.next
	switch t {
	case model.CDS:
		facts.SlowWarm = c.pick(4) == 0
		if !facts.SlowWarm {
			facts.Endpoints = name
		}
	case model.LDS, model.RDS:
		facts.Clusters = []string{[]string{"a", "b", "c", "d"}[c.pick(4)]}
	}
	r.Pieces = []*xds.Encoded{{Facts: facts}}
	return r
}

func (c *chaosClient) someNames(t model.ResourceType) []string {
	if (t == model.CDS || t == model.LDS) && c.pick(2) == 0 {
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

func (c *chaosClient) ask(t model.ResourceType) {
	if c.asked[t] {
		return
	}
	c.asked[t] = true
	c.names[t] = c.someNames(t)
	set := c.views[c.pick(len(c.views))].Sets[t]
	version := []string{"", set.Sum.String(), set.SumOf(c.names[t]).String(), "ffff", "nack-2-ff"}[c.pick(5)]
	c.version[t] = version
	c.request(t, "", "")
}

func (c *chaosClient) request(t model.ResourceType, nonce, rejected string) {
	c.note("> %s version=%q nonce=%q names=%v rejected=%q", t, c.version[t], nonce, c.names[t], rejected)
	c.stream.Request(c.now, stream.Request{
		TypeURL: t.URL(), Version: c.version[t], Nonce: nonce, Names: names.Of(c.names[t]...), Rejected: rejected != "", Error: rejected,
	})
}

func (c *chaosClient) answer(t model.ResourceType, reject bool) {
	if len(c.queue[t]) == 0 {
		return
	}
	r := c.queue[t][0]
	c.queue[t] = c.queue[t][1:]
	c.asked[t] = true
	c.nonce[t] = r.Nonce
	if !reject {
		c.version[t] = r.Version
		c.request(t, r.Nonce, "")
		return
	}
	c.nacked = true
	c.request(t, r.Nonce, []string{"b: is bad", "nobody is named", "a, c"}[c.pick(3)])
}

// drain takes up to n responses.
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
	c.note("< %s %v version=%s nonce=%s", r.Type, words, r.Version, r.Nonce)
	if r.Version == "" || r.Nonce == "" {
		c.t.Errorf("a response without version or nonce (G15)")
	}
	if !slices.IsSortedFunc(r.Resources, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) }) {
		c.t.Errorf("not sorted: %v", words)
	}
	c.queue[r.Type] = append(c.queue[r.Type], r)
}

// finish accepts everything: the stream comes to rest, and the client has all.
func (c *chaosClient) finish(grpc bool) {
	for round := 0; ; round++ {
		if round == 200 {
			c.t.Error("it does not come to rest")
			return
		}
		before := len(c.trace)
		c.drain(100)
		for t := range model.ResourceTypes {
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
			c.t.Error("it wants to be woken at once, for nothing")
			return
		}
	}
	if c.nacked {
		return
	}
	for _, st := range c.stream.Status().Types {
		if !st.AckedAll {
			c.t.Errorf("%s is not acknowledged", st.Type)
		}
	}
}
