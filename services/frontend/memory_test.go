package frontend_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
)

// An attack is what clients of one address do at the same time.
type attack struct {
	name    string
	clients int
	does    func(a *attacker, client int)
	last    time.Duration
}

// attacker is a client of the child, until its context ends.
type attacker struct {
	testing.TB
	ctx     context.Context
	address string
}

// stream opens a stream on a connection of its own; limit is how many bytes the
// connection sends, 0: all.
func (a *attacker) stream(limit int) (rawStream, func()) {
	conn, err := grpc.NewClient("passthrough:///"+a.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil || limit == 0 {
				return c, err
			}
			return &stuckConn{Conn: c, left: limit, until: a.ctx.Done()}, nil
		}))
	if err != nil {
		a.Error(err)
	}
	s, err := conn.NewStream(a.ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, ads,
		grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallSendMsgSize(1<<30))
	if err != nil {
		_ = conn.Close()
		return rawStream{}, nil
	}
	return rawStream{a.TB, s}, func() { _ = conn.Close() }
}

// again sends a request on new streams, one after the other, until the attack ends.
func (a *attacker) again(request func(n int) []byte) {
	for n := 0; a.ctx.Err() == nil; n++ {
		if s, leave := a.stream(0); leave != nil {
			if s.send(request(n)) {
				_ = s.ended()
			}
			leave()
		}
	}
}

// hold sends a request on a stream and keeps the stream until the attack ends.
func (a *attacker) hold(request []byte, limit int) {
	if s, leave := a.stream(limit); leave != nil {
		defer leave()
		if request != nil {
			s.send(request)
		}
		_ = s.ended()
		<-a.ctx.Done()
	}
}

// stuckConn stops sending after some bytes.
type stuckConn struct {
	net.Conn
	left  int
	until <-chan struct{}
}

func (c *stuckConn) Write(b []byte) (int, error) {
	if len(b) > c.left {
		<-c.until
		return 0, net.ErrClosed
	}
	c.left -= len(b)
	return c.Conn.Write(b)
}

func attacks(t *testing.T) []attack {
	const metadata = 3
	names := rawRequest(rawNode(), []byte(strings.Repeat("\x1a\x05c\x30000", 12<<20/7)))
	views := func(text string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{"REQUESTED_NETWORK_VIEW": structpb.NewStringValue(text)}}
	}
	nulls := field(nil, 6, []byte(strings.Repeat("\x0a\x02\x08\x00", 15_000)))
	named := func(i, n int) []byte {
		b := field(nil, 4, []byte(ident.EDS.URL()))
		for k := range n {
			b = field(b, 3, fmt.Appendf(nil, "%x-%x", i, k))
		}
		return b
	}
	return []attack{
		{"1.8 million names in 12 MiB", 8, func(a *attacker, _ int) { a.again(func(int) []byte { return names }) }, 3 * time.Second},
		{"250,000 names that do not exist, other ones for each client", 8, func(a *attacker, client int) {
			b := rawRequest(rawNode(), named(client, 250_000))
			a.again(func(int) []byte { return b })
		}, 3 * time.Second},
		{"streams with 10,000 names that do not exist, other ones for each", 100, func(a *attacker, client int) {
			a.hold(rawRequest(rawNode(), named(client, 10_000)), 0)
		}, 3 * time.Second},
		{"a node of 5.75 MB", 8, func(a *attacker, client int) {
			b := rawRequest(rawNode(field(nil, metadata, marshal(t, texts(5_750_000)))))
			a.again(func(int) []byte { return b })
		}, 3 * time.Second},
		{"metadata that decoding makes large, other for each stream", 500, func(a *attacker, client int) {
			entry := field(nil, 1, field(field(nil, 1, fmt.Appendf(nil, "k%d", client)), 2, nulls))
			a.hold(rawRequest(rawNode(field(nil, metadata, entry))), 0)
		}, 3 * time.Second},
		{"requests of 64 MiB that stop before their end", 40, func(a *attacker, _ int) {
			a.hold(rawRequest(rawNode(), field(nil, 9, make([]byte, 63<<20))), 60<<20)
		}, 6 * time.Second},
		{"streams without a request", 3000, func(a *attacker, _ int) { a.hold(nil, 0) }, 6 * time.Second},
		{"views of networks that do not exist", 1000, func(a *attacker, client int) {
			a.hold(rawRequest(rawNode(field(nil, metadata, marshal(t, views(fmt.Sprint("net", client)))))), 0)
		}, 3 * time.Second},
	}
}

// While clients attack, a frontend takes less than twice the memory that it takes
// for its proxies, and serves these (XDS-1, XDS-2, XDS-3). The frontend is a process
// of its own. Its peak is what the kernel measured.
func TestMemoryUnderAttack(t *testing.T) {
	c := startChild(t, childTask{Services: 1000, DefaultLimits: true})
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("c", i))
	}
	var proxies []*envoy
	for i := range 1000 {
		e := c.connect(node(fmt.Sprint("web-", i), "web"))
		e.ask(ident.CDS)
		e.ack(e.receive())
		e.ask(ident.EDS, names...)
		e.ack(e.receive())
		proxies = append(proxies, e)
	}
	c.do("settle")
	for range 20 {
		c.do("change")
		for _, e := range proxies {
			e.ack(e.receive())
		}
	}
	normal := c.do("peak").RSS
	if normal == 0 {
		t.Fatal("this system does not tell the memory of a process: run the test on Linux")
	}
	t.Logf("normal, with %d proxies: %d MiB at most, %d MiB of it in use", len(proxies), normal>>20, c.do("settle").RSS>>20)
	for _, attack := range attacks(t) {
		t.Run(attack.name, func(t *testing.T) {
			c.do("settle")
			ctx, cancel := context.WithTimeout(t.Context(), attack.last)
			defer cancel()
			var clients sync.WaitGroup
			for i := range attack.clients {
				clients.Go(func() { attack.does(&attacker{t, ctx, c.address}, i) })
			}
			var worst time.Duration
			for ctx.Err() == nil {
				began := time.Now()
				c.do("change")
				proxies[0].ack(proxies[0].receive())
				worst = max(worst, time.Since(began))
				for _, e := range proxies[1:] {
					e.ack(e.receive())
				}
			}
			clients.Wait()
			peak := c.do("peak").RSS
			after := c.do("settle").RSS
			t.Logf("peak %d MiB, afterwards %d MiB, normal %d MiB; a change reaches a proxy within %s", peak>>20, after>>20, normal>>20, worst.Round(time.Millisecond))
			if peak >= 2*normal {
				t.Errorf("the frontend takes %d MiB, twice the normal %d MiB", peak>>20, normal>>20)
			}
			if worst > 10*time.Second {
				t.Errorf("a change reached a proxy after %s", worst)
			}
		})
	}
}
