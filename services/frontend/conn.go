package frontend

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
)

// firstAnswersFor is how long a stream counts as being at its first answers at
// most: several times what one takes that has a processor to itself. Who takes
// longer waits for a slow line or a dead client, which costs nobody anything.
const firstAnswersFor = 250 * time.Millisecond

// conn is one stream. Its handler, the goroutine that grpc starts for it, waits
// for the reason to end it; another goroutine receives. Who has the stream's
// turn sends, in a goroutine that is there only while there is something to
// send. Nobody waits for the client but in grpc, and when the handler has
// returned grpc lets go of all of them.
type conn struct {
	server  *Server
	grpc    grpc.ServerStream
	ended   chan error // why the stream ends: the first reason counts
	mode    mode
	proxy   *proxy.Proxy
	address string
	since   time.Time // when the stream began, after the gate
	resumes bool      // the client was served before
	client  *content.Client

	turn   turn
	behind atomic.Bool // there is another view

	// Of who has the turn.
	transmit func()   // c.send, made once
	out      response // to be sent, if ready
	ready    bool
	limit    *time.Timer // ends the stream when one response takes too long
	alarm    *time.Timer // wakes the stream
	alarmAt  time.Time   // when alarm is due; zero: it is not set

	mu             sync.Mutex      // protects what follows
	state          *stream.Stream  // nil: not begun, or over
	inFirstAnswers bool            // at its first answers
	responded      bool            // something was sent
	head           *ident.Position // to be reached before a client that knows more is answered
	asking         bool            // for the head
	toReport       bool            // something to report
	class          index.ProxyClass
	group          string // class, printed

	subscribed [ident.ResourceTypes]subscription
}

// subscription is what the client wants to know of one type.
type subscription struct {
	all   bool
	names *names.Names
}

// serve runs a stream. It returns when the client leaves or does not take what
// it is sent, when the stream is old, or when the frontend drains. It stays
// small: its stack is there as long as the stream.
func (s *Server) serve(gs grpc.ServerStream, m mode) error {
	if err := s.begin(); err != nil {
		s.cfg.Metrics.refused.Inc()
		return err
	}
	c := &conn{server: s, grpc: gs, mode: m, ended: make(chan error, 1)}
	go c.run()
	select {
	case err := <-c.ended:
		return err
	case <-gs.Context().Done():
		return status.FromContextError(gs.Context().Err()).Err()
	}
}

// end ends the stream; err is what the client is to see.
func (c *conn) end(err error) {
	select {
	case c.ended <- err:
	default: // it ends already
	}
}

// receive receives a request. If there is none, the error is what the client is
// to see: nil if it is done.
func receive(gs grpc.ServerStream, r *request) (ok bool, err error) {
	switch err := gs.RecvMsg(r); {
	case errors.Is(err, io.EOF):
		return false, nil
	case err != nil:
		return false, err
	case r.malformed != nil:
		return false, status.Error(codes.InvalidArgument, r.malformed.Error())
	}
	return true, nil
}

func readNode(b []byte) (*proxy.Proxy, error) {
	if b == nil {
		return proxy.NewProxy(nil)
	}
	node := new(corev3.Node)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, node); err != nil {
		return nil, err
	}
	return proxy.NewProxy(node)
}

func addressOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// run is the stream from its first request to its end.
func (c *conn) run() {
	defer c.server.streams.Done()
	r := &request{delta: c.mode.delta, wantNode: true}
	if err := c.enter(r); err != nil {
		c.end(err)
		return
	}
	defer c.leave()
	if age := c.server.cfg.Limits.MaxAge; age > 0 {
		defer time.AfterFunc(jitter(age), c.maxAgeReached).Stop()
	}
	c.end(c.take(r))
}

// take takes requests in, of which r is the first, until there are no more.
func (c *conn) take(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	c.begin()
	for ok := true; ok; ok, err = receive(c.grpc, r) {
		c.request(r)
		r.wantNode = false
		r.free()
		c.sendIfIdle()
	}
	return err
}

// enter receives the first request, which says who the client is, and waits
// until the stream may begin. After an error there is nothing to leave.
func (c *conn) enter(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	ok, err := receive(c.grpc, r)
	if !ok {
		return err
	}
	if c.proxy, err = readNode(r.node); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if p, ok := peer.FromContext(c.grpc.Context()); ok {
		c.address = addressOf(p.Addr)
		if err := checkIdentity(p.AuthInfo, c.proxy); err != nil {
			c.server.identityMismatch(c.proxy, c.address, err)
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	c.resumes = r.resumes()
	if err := c.server.admission.wait(c.grpc.Context(), c.resumes); err != nil {
		c.server.cfg.Metrics.refused.Inc()
		return err
	}
	c.since, c.inFirstAnswers = time.Now(), true
	c.transmit = c.send
	c.limit, c.alarm = stopped(c.tooSlow), stopped(c.wake)
	c.server.register(c) // before the state is read (I6)
	c.server.streamLog.Info("proxy connected", "proxy", c.proxy.ID, "type", string(c.proxy.Type), "address", c.address,
		"delta", c.mode.delta, "resumes", c.resumes)
	return nil
}

// begin makes the stream's state. Who works for the stream meanwhile waits.
func (c *conn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = c.server.cache.Join(c.proxy)
	c.client.Notify(c.changed)
	c.state = stream.New(c.config(), c.client.View())
	c.toReport = true
}

func (c *conn) config() stream.Config {
	return stream.Config{
		GRPC: c.proxy.GRPC, Delta: c.mode.delta, Only: c.mode.only, Names: c.server.names,
		Linger: c.server.cfg.Limits.Linger, Past: c.client.Past(), Observe: c.observe,
	}
}

// aged ends the stream because of its age: with OK, which no client minds
// (E40). A GOAWAY alone, on which Envoy stays (E41), came before, so that the
// next stream is on another connection, which may lead to another frontend.
func (c *conn) maxAgeReached() {
	c.server.cfg.Metrics.aged.Inc()
	c.end(nil)
}

// leave waits for who works for the stream, which has ended.
func (c *conn) leave() {
	c.server.unregister(c)
	c.server.streamLog.Info("proxy disconnected", "proxy", c.proxy.ID, "address", c.address, "after", time.Since(c.since).Round(time.Millisecond))
	c.turn.end()
	c.limit.Stop()
	c.alarm.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endFirstAnswers()
	c.state = nil
	if c.client != nil {
		c.client.Leave()
	}
}

// stopped is a timer that is not set.
func stopped(f func()) *time.Timer {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return t
}

// jitter is d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// request takes a request in.
func (c *conn) request(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Request(time.Now(), r.Request)
	c.subscribe()
	if c.inFirstAnswers && c.responded && c.firstAnswersAcked() {
		c.endFirstAnswers()
	}
}

// subscribe has the stream woken when something changes to which the client is
// subscribed, and not otherwise; mu is held.
func (c *conn) subscribe() {
	for t := range ident.ResourceTypes {
		var now subscription
		if now.all, now.names = c.state.Subscription(t); now == c.subscribed[t] {
			continue
		}
		c.subscribed[t] = now
		if now.all {
			c.client.WatchAll(t)
		} else {
			c.client.Watch(t, now.names)
		}
	}
}

// through says whether the client has answered its first answers; mu is held.
// One that is new asks for its listeners after all that is large.
func (c *conn) firstAnswersAcked() bool {
	listeners := false
	for _, t := range c.state.Status().Types {
		if !t.Unanswered.IsZero() {
			return false
		}
		listeners = listeners || t.Type == ident.LDS
	}
	return listeners || c.resumes || c.mode.only != nil
}

// answered says that the first answers are over; mu is held.
func (c *conn) endFirstAnswers() {
	if c.inFirstAnswers {
		c.inFirstAnswers = false
		c.server.admission.release()
	}
}
