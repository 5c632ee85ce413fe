package stream_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

const meshSize = 1001

// bigMesh is a view of meshSize clusters with their endpoints, some listeners
// and a route configuration.
func bigMesh() (content.View, []string) {
	v := content.View{Version: ident.Position{Epoch: 1, Seq: 1}}
	for t := range ident.ResourceTypes {
		v.Sets[t] = &xds.Set{}
	}
	add := func(t ident.ResourceType, name string, facts piece.Facts) {
		r := &xds.Resource{Name: name, Sum: xds.Absent(t.String() + name), Head: make([]byte, 90), DeltaHead: make([]byte, 180)}
		r.Pieces = xds.PiecesOf(&xds.Encoded{Value: make([]byte, 900), Facts: facts})
		v.Sets[t].Resources = append(v.Sets[t].Resources, r)
		v.Sets[t].Sum = v.Sets[t].Sum.Add(r.Sum)
	}
	var all []string
	for i := range meshSize {
		name := fmt.Sprintf("outbound|8080||service-%04d.default.svc.cluster.local", i)
		all = append(all, name)
		add(ident.CDS, name, piece.Facts{Endpoints: name})
		add(ident.EDS, name, piece.Facts{})
	}
	for i := range 20 {
		add(ident.LDS, fmt.Sprintf("0.0.0.0_%05d", i), piece.Facts{})
	}
	add(ident.RDS, "80", piece.Facts{Clusters: all})
	return v, all
}

// changed returns v with new endpoints of one service.
func changed(v content.View, name string, n int) content.View {
	old := v.Sets[ident.EDS]
	set := &xds.Set{Resources: append([]*xds.Resource(nil), old.Resources...), Sum: old.Sum}
	i, _ := xds.Search(set.Resources, name)
	r := *set.Resources[i]
	set.Sum = set.Sum.Add(r.Sum)
	r.Sum = xds.Absent(fmt.Sprint(name, n))
	set.Sum = set.Sum.Add(r.Sum)
	set.Resources[i] = &r
	v.Sets[ident.EDS] = set
	v.Version.Seq++
	return v
}

// client accepts every response.
type client struct {
	stream *stream.Stream
	delta  bool
	names  [ident.ResourceTypes]names.Wire
	now    time.Time
}

func newClient(table *names.Table, v content.View, all []string, delta bool) *client {
	return newClientOf(stream.Config{Linger: 30 * time.Second, Names: table, Delta: delta}, v, all)
}

func newClientOf(cfg stream.Config, v content.View, all []string) *client {
	c := &client{delta: cfg.Delta, now: time.Unix(1_000_000, 0), stream: stream.New(cfg, v)}
	c.names[ident.EDS], c.names[ident.RDS] = names.Of(all...), names.Of("80")
	return c
}

func (c *client) send(r stream.Request) {
	if err := c.stream.Request(c.now, r); err != nil {
		panic(err)
	}
}

// connect asks for what Envoys ask for: agents alone ask for the names of the mesh.
func (c *client) connect() {
	for t := range ident.ResourceTypes {
		if t == ident.NDS {
			continue
		}
		c.send(stream.Request{TypeURL: t.URL(), Names: c.names[t]})
		c.acceptAll()
	}
}

func (c *client) acceptAll() (n int) {
	for {
		r, ok := c.stream.Next(c.now)
		if !ok {
			return n
		}
		n++
		c.answer(r)
	}
}

func (c *client) answer(r stream.Response) {
	req := stream.Request{TypeURL: r.Type.URL(), Version: r.Version, Nonce: r.Nonce}
	if !c.delta {
		req.Names = c.names[r.Type]
	}
	c.send(req)
}

// TestSteadyStream bounds the bytes that an idle stream keeps, with many names or
// few.
func TestSteadyStream(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			v, all := bigMesh()
			table := new(names.Table)
			const n = 1000
			streams := make([]*stream.Stream, n)
			warm := newClient(table, v, all, delta)
			warm.connect()
			before := heap()
			for i := range streams {
				c := newClient(table, v, all, delta)
				c.connect()
				v = changed(v, all[i], i)
				c.stream.Update(c.now, v)
				c.acceptAll()
				c.stream.Update(c.now, v)
				streams[i] = c.stream
			}
			for i, s := range streams {
				c := newClient(table, v, all, delta)
				c.stream = s
				s.Update(c.now, v)
				c.acceptAll()
				for _, st := range s.Status().Types {
					if !st.AckedAll {
						t.Fatalf("stream %d: %s is not acknowledged", i, st.Type)
					}
				}
			}
			per := (heap() - before) / n
			t.Logf("%d bytes a stream", per)
			if per > 5<<10 {
				t.Errorf("an idle stream keeps %d bytes, want at most 5 KiB", per)
			}
			for i, s := range streams {
				for typ := range ident.ResourceTypes {
					if typ != ident.NDS && s.Subscription(typ) != warm.stream.Subscription(typ) {
						t.Fatalf("stream %d has a set of names of its own", i)
					}
				}
			}
			runtime.KeepAlive(streams)
			runtime.KeepAlive(warm)
		})
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// BenchmarkPushEndpointToStream pushes one changed ClusterLoadAssignment to one
// of many streams, and accepts it.
func BenchmarkPushEndpointToStream(b *testing.B) {
	for _, delta := range []bool{false, true} {
		b.Run(fmt.Sprintf("delta=%v", delta), func(b *testing.B) {
			v, all := bigMesh()
			c := newClient(new(names.Table), v, all, delta)
			c.connect()
			views := []content.View{changed(v, all[500], 1), changed(v, all[500], 2)}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				c.stream.Update(c.now, views[n%2])
				r, ok := c.stream.Next(c.now)
				if !ok || len(r.Resources) != 1 {
					b.Fatalf("%d resources", len(r.Resources))
				}
				c.answer(r)
				if _, ok := c.stream.Next(c.now); ok {
					b.Fatal("more")
				}
			}
		})
	}
}

// manner is how a client of many names answers.
type manner struct {
	name string
	of   ident.ResourceType
	// behind is how many responses the client leaves unanswered: none, all or one.
	behind int
	// rejects: it rejects what it answers, apart from its first response.
	rejects bool
}

var manners = []manner{
	{"EDS, with ACKs", ident.EDS, 0, false},
	{"EDS, without ACKs", ident.EDS, never, false},
	{"EDS, one ACK behind", ident.EDS, 1, false},
	{"CDS, with ACKs", ident.CDS, 0, false},
	{"CDS, without ACKs", ident.CDS, never, false},
	{"CDS, one ACK behind", ident.CDS, 1, false},
	{"EDS, with NACKs", ident.EDS, 0, true},
	{"CDS, with NACKs", ident.CDS, 0, true},
}

const never = math.MaxInt

// bigSubscription is a delta client that has asked for 100,000 names besides others
// and was answered.
type bigSubscription struct {
	*client
	manner
	responses  int
	unanswered []stream.Response
}

func newBigSubscription(m manner) *bigSubscription {
	v, all := bigMesh()
	c := &bigSubscription{client: newClient(new(names.Table), v, nil, true), manner: m}
	c.ask(all...)
	c.read()
	var absent []string
	for i := range 100_000 {
		absent = append(absent, fmt.Sprintf("absent-%06d", i))
	}
	c.ask(absent...)
	c.read()
	for i := range 50 { // more than are remembered without an answer
		c.change(fmt.Sprint("first-", i), true)
	}
	return c
}

func (c *bigSubscription) ask(list ...string) {
	c.send(stream.Request{TypeURL: c.of.URL(), Names: names.Of(list...)})
}

func (c *bigSubscription) read() (n int) {
	for {
		r, ok := c.stream.Next(c.now)
		if !ok {
			return n
		}
		n++
		c.responses++
		switch c.unanswered = append(c.unanswered, r); {
		case c.behind == never:
			c.unanswered = nil
		case len(c.unanswered) > c.behind:
			c.respond(c.unanswered[0])
			c.unanswered = c.unanswered[1:]
		}
	}
}

// respond answers a response.
func (c *bigSubscription) respond(r stream.Response) {
	if !c.rejects || c.responses == 1 {
		c.answer(r)
		return
	}
	c.send(stream.Request{TypeURL: c.of.URL(), Nonce: r.Nonce, Rejected: true, Error: "no"})
}

// change subscribes to one more name and reads the response, or unsubscribes from
// it.
func (c *bigSubscription) change(name string, on bool) {
	if !on {
		c.send(stream.Request{TypeURL: c.of.URL(), Unsubscribe: names.Of(name)})
		c.read()
		return
	}
	c.ask(name)
	if n := c.read(); n != 1 {
		panic(fmt.Sprint(n, " responses"))
	}
}

// BenchmarkDeltaRequest changes one name of a large subscription (XDS-8).
func BenchmarkDeltaRequest(b *testing.B) {
	for _, m := range manners {
		b.Run(m.name, func(b *testing.B) {
			c := newBigSubscription(m)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				c.change(fmt.Sprint("one-", n/2%1000), n%2 == 0)
				n++
			}
		})
	}
}

// TestDeltaRequestFollowsNames checks that the work of a delta request follows the
// names that it changes, and not those that are subscribed or unanswered (XDS-8):
// copying the subscription would allocate 1.6 MB, copying what is known of each name
// 5 MB. TestChangedEntries checks what is looked at.
func TestDeltaRequestFollowsNames(t *testing.T) {
	for _, m := range manners {
		t.Run(m.name, func(t *testing.T) {
			c := newBigSubscription(m)
			const n = 100
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range n {
				c.change(fmt.Sprint("one-", i), true)
				c.change(fmt.Sprint("one-", i), false)
			}
			runtime.ReadMemStats(&after)
			per := (after.TotalAlloc - before.TotalAlloc) / (2 * n)
			t.Logf("%d bytes a request", per)
			if per > 64<<10 {
				t.Errorf("a request of one name allocates %d bytes, want at most 64 KiB", per)
			}
		})
	}
}

// BenchmarkFirstSync sends everything to a new stream, which ACKs it, after
// another stream of its class.
func BenchmarkFirstSync(b *testing.B) {
	for _, delta := range []bool{false, true} {
		b.Run(fmt.Sprintf("delta=%v", delta), func(b *testing.B) {
			v, all := bigMesh()
			table := new(names.Table)
			first := newClient(table, v, all, delta)
			first.connect()
			wire := first.names
			b.ReportAllocs()
			for b.Loop() {
				c := &client{delta: delta, now: first.now, names: wire}
				c.stream = stream.New(stream.Config{Linger: 30 * time.Second, Names: table, Delta: delta}, v)
				c.connect()
			}
		})
	}
}
