package frontend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	. "meshlog.dev/services/mesh/meshtest"
)

func withLimits(change func(*frontend.Limits)) option {
	return func(c *frontend.Config) { change(&c.Limits) }
}

// counted returns the sum of a metric over its labels, or those whose label has a value.
func (r *rig) counted(name string, values ...string) (sum float64) {
	r.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.metrics)
	families, err := registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := len(values) == 0
			for _, l := range m.GetLabel() {
				has = has || slices.Contains(values, l.GetValue())
			}
			if f.GetName() == name && has {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// A frontend that serves nothing yet gives no first answer (G13).
func TestNotReady(t *testing.T) {
	mesh := newMesh(t)
	f := start(t, "f1", mesh)
	if err := f.server.Ready(); err == nil {
		t.Error("ready without a version")
	}
	e := f.connect(node("web-1", "web"))
	if _, err := e.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	mesh.Publish(Put("a", Cluster("a", 1)))
	f.until("ready", func(*reportv1.FrontendReport) bool { return f.server.Ready() == nil })
	e = e.reconnect(f)
	e.ask(ident.CDS)
	e.ack(e.expect(ident.CDS, "a"))
}

func TestStreamLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerSecond = 2 }))
		var streams []*envoy
		for i := range 20 {
			e := f.connect(node(fmt.Sprint("web-", i), "web"))
			e.ask(ident.CDS)
			streams = append(streams, e)
			synctest.Wait()
		}
		taken := 0
		for _, e := range streams {
			_, err := e.stream.Recv()
			if err == nil {
				taken++
			} else if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "another frontend") {
				t.Errorf("got %v, want UNAVAILABLE with advice", err)
			}
		}
		// Two are admitted at once, and two in each of the five seconds that the
		// others may wait.
		if refused := f.counted("meshlog_frontend_streams_refused_total"); taken < 11 || taken > 12 || taken+int(refused) != 20 {
			t.Errorf("%d admitted, %v refused", taken, refused)
		}
	})
}

// A new client holds a place until it has its listeners. The next client waits for
// the place.
func TestFirstAnswersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.FirstAnswers = 1 }))
		one, two := f.connect(node("web-1", "web")), f.connect(node("web-2", "web"))
		one.ask(ident.CDS)
		one.ack(one.expect(ident.CDS, "v1"))
		two.ask(ident.CDS)
		synctest.Wait()
		if in, waiting := f.counted("meshlog_frontend_first_answers"), f.counted("meshlog_frontend_streams_waiting"); in != 1 || waiting != 1 {
			t.Errorf("%v clients hold a place, %v wait; want 1 and 1", in, waiting)
		}
		one.ask(ident.EDS, "v1")
		one.ack(one.expect(ident.EDS, "v1"))
		one.ask(ident.LDS)
		one.ack(one.expect(ident.LDS, "http"))
		two.ack(two.expect(ident.CDS, "v1"))
	})
}

// A client that resumes with all content gives its place back at once.
func TestFirstAnswersOfResuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.FirstAnswers = 1 }))
		e := f.connect(node("web-1", "web"))
		bootShop(e)
		synctest.Wait()
		e = e.reconnect(f)
		e.ask(ident.CDS)
		e.ask(ident.EDS, "v1")
		e.ack(e.expect(ident.EDS))
		other := f.connect(node("web-2", "web"))
		other.ask(ident.CDS)
		other.ack(other.expect(ident.CDS, "v1"))
	})
}

// A client that never ACKs loses its place after a moment.
func TestFirstAnswersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.FirstAnswers = 1 }))
		e := f.connect(node("web-1", "web"))
		e.ask(ident.CDS)
		e.expect(ident.CDS, "v1")
		<-time.After(200 * time.Millisecond)
		other := f.connect(node("web-2", "web"))
		other.ask(ident.CDS)
		other.ack(other.expect(ident.CDS, "v1"))
	})
}

// A client that does not read its responses loses its stream, and delays no other
// client.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		big := Cluster("big", 1)
		big.AltStatName = strings.Repeat("x", 1<<20)
		mesh.Publish(Put("big", big), Put("e", Endpoints("big", 1)))
		f := start(t, "f1", mesh)
		slow, other := f.connect(node("slow", "web")), f.connect(node("other", "web"))
		slow.ask(ident.CDS)
		slow.ask(ident.EDS, "big") // the second response does not fit the transport's window
		synctest.Wait()
		began := time.Now()
		other.ask(ident.CDS)
		other.ack(other.expect(ident.CDS, "big"))
		other.ask(ident.EDS, "big")
		other.ack(other.expect(ident.EDS, "big"))
		for port := range uint32(10) {
			mesh.Publish(Put("e", Endpoints("big", port+2)))
			other.ack(other.expect(ident.EDS, "big"))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a slow client delays another one by %s", took)
		}
		f.until("one stream", func(r *reportv1.FrontendReport) bool { return len(r.GetProxies()) == 1 })
		if took := time.Since(began); took != 30*time.Second || f.counted("pilot_xds_write_timeout") != 1 {
			t.Errorf("a slow client is ended after %s, %v counted", took, f.counted("pilot_xds_write_timeout"))
		}
		mesh.Publish(Put("e", Endpoints("big", 99)))
		other.ack(other.expect(ident.EDS, "big"))
	})
}

// frozen is a connection whose other end vanished.
type frozen struct {
	net.Conn
	gone chan struct{}
	once sync.Once
}

func (c *frozen) freeze() { c.once.Do(func() { close(c.gone) }) }

func (c *frozen) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.gone:
		return 0, errors.Join(net.ErrClosed, err)
	default:
		return n, err
	}
}

// Close leaves the frontend's end open.
func (c *frozen) Close() error { return nil }

// Keepalive ends the stream of a client that vanished.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := shop(t)
		f := start(t, "f1", mesh)
		var c *frozen
		conn := f.dial(func(n net.Conn) net.Conn {
			c = &frozen{Conn: n, gone: make(chan struct{})}
			return c
		})
		e, other := connect(t, conn, node("gone", "web")), f.connect(node("other", "web"))
		bootShop(e)
		bootShop(other)
		synctest.Wait()
		c.freeze()
		began := time.Now()
		mesh.Publish(Put("v1-endpoints", Endpoints("v1", 8001, 8002)))
		other.ack(other.expect(ident.EDS, "v1"))
		f.until("one stream", func(r *reportv1.FrontendReport) bool { return len(r.GetProxies()) == 1 })
		if took := time.Since(began); took > 45*time.Second {
			t.Errorf("ended after %s", took)
		}
		_ = c.Conn.Close()
	})
}

func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		var conns atomic.Int32
		conn := f.dial(func(c net.Conn) net.Conn { conns.Add(1); return c })
		e := connect(t, conn, node("web-1", "web"))
		bootShop(e)
		began := time.Now()
		if _, err := e.stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v, want OK", err)
		}
		if age := time.Since(began); age < 27*time.Minute || age > 33*time.Minute {
			t.Errorf("the stream ends after %s", age)
		}
		// The next stream is on another connection, and needs only one response
		// without content.
		next := connect(t, conn, e.node)
		next.versions, next.names = e.versions, e.names
		e = next
		e.ask(ident.CDS)
		e.ask(ident.EDS, "v1")
		e.ack(e.expect(ident.EDS))
		if n := conns.Load(); n != 2 {
			t.Errorf("%d connections, want 2: the second may lead to another frontend", n)
		}
		if aged := f.counted("meshlog_frontend_streams_aged_total"); aged != 1 {
			t.Errorf("%v counted", aged)
		}
	})
}

// During the drain, a client whose stream has ended cannot reconnect to this
// frontend, so it connects to another one.
func TestDrainTakesNoConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.Drain = 10 * time.Second }))
		ended := make(chan error)
		for _, id := range []string{"web-1", "web-2"} {
			e := f.connect(node(id, "web"))
			bootShop(e)
			go func() {
				_, err := e.stream.Recv()
				ended <- err
			}()
		}
		began := time.Now()
		f.stop()
		for i, after := range []time.Duration{0, 5 * time.Second} {
			if err := <-ended; status.Code(err) != codes.Unavailable {
				t.Errorf("a stream ends with %v, want UNAVAILABLE", err)
			}
			if took := time.Since(began); took != after {
				t.Errorf("stream %d ends after %s, want %s", i, took, after)
			}
			if _, err := f.pipes.dial(t.Context(), nil); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a new connection: %v, want it refused", err)
			}
		}
		f.end()
	})
}

// A client that connects and sends nothing delays neither the drain, nor the
// GOAWAY to the clients whose streams are drained later.
func TestDrainClosesHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drain = 10 * time.Second
		secure := newPipes()
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.Drain = drain }), func(c *frontend.Config) {
			c.TLSListeners, c.TLS = []net.Listener{secure}, &tls.Config{MinVersion: tls.VersionTLS13}
		})
		var conns []*grpc.ClientConn
		for _, id := range []string{"web-1", "web-2"} {
			conn := f.dial(nil)
			conns = append(conns, conn)
			bootShop(connect(t, conn, node(id, "web")))
		}
		var silent []net.Conn
		for _, p := range []*pipes{f.pipes, secure} {
			c, err := p.dial(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, c)
		}
		synctest.Wait()
		began := time.Now()
		f.stop()
		synctest.Wait()
		for i, conn := range conns {
			if s := conn.GetState(); s == connectivity.Ready {
				t.Errorf("connection %d is ready for another stream", i)
			}
		}
		for i, c := range silent {
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Errorf("silent connection %d: %v, want it closed", i, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("silent connections are closed after %s", took)
		}
		f.end()
		if took := time.Since(began); took > drain {
			t.Errorf("the frontend ends after %s, want %s at most", took, drain)
		}
		if n := f.counted("meshlog_frontend_tls_handshake_failures_total"); n != 0 {
			t.Errorf("%v failed handshakes are counted, want none: the frontend closed the connections", n)
		}
	})
}

func TestNoAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := shop(t)
		f := start(t, "f1", mesh, withLimits(func(l *frontend.Limits) { l.MaxAge = 0 }))
		e := f.connect(node("web-1", "web"))
		bootShop(e)
		<-time.After(24 * time.Hour)
		mesh.Publish(Put("v1-endpoints", Endpoints("v1", 8001, 8002)))
		e.ack(e.expect(ident.EDS, "v1"))
	})
}

// panics is a log handler that panics at a warning.
type panics struct{ slog.Handler }

func (panics) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		panic(r.Message)
	}
	return nil
}

func (p panics) WithAttrs([]slog.Attr) slog.Handler { return p }

// A panic ends the stream in which it happens, and no other.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := shop(t)
		f := start(t, "f1", mesh, func(c *frontend.Config) { c.Logger = slog.New(panics{slog.DiscardHandler}) })
		e, other := f.connect(node("web-1", "web")), f.connect(node("web-2", "web"))
		bootShop(other)
		e.ask(ident.CDS)
		e.nack(e.expect(ident.CDS, "v1"), "no")
		if _, err := e.stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "log") {
			t.Errorf("the stream ends with %v, want UNAVAILABLE with a hint to the log", err)
		}
		mesh.Publish(Put("v1-endpoints", Endpoints("v1", 8001, 8002)))
		other.ack(other.expect(ident.EDS, "v1"))
		f.until("one stream", func(r *reportv1.FrontendReport) bool { return len(r.GetProxies()) == 1 })
		if n := f.counted("meshlog_frontend_panics_total"); n != 1 {
			t.Errorf("%v counted", n)
		}
	})
}
