package frontend

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// firstAnswersFor is how long a stream counts as being in its first responses
// at most: several times what one takes with a processor of its own. A stream
// that takes longer waits for a slow line or a dead client, which costs other
// streams nothing.
const firstAnswersFor = 250 * time.Millisecond

// conn is one stream. Its handler, the goroutine that gRPC starts for it, waits
// for the reason to end; another goroutine receives; a third sends, and exists
// only while there is something to send (turn.go). Only gRPC waits for the
// client, and it releases all of them when the handler returns.
type conn struct {
	server  *Server
	grpc    grpc.ServerStream
	ended   chan error // why the stream ends
	mode    mode
	proxy   *proxy.Proxy
	address string
	meter   *meteredConn // the connection
	share   *share
	id      identity
	about   *metadata // of the proxy; nil: none
	place   place
	since   time.Time // when the stream began, after the gate
	resumes bool      // the client has versions from an earlier stream
	client  *content.Client

	turn   turn
	behind atomic.Bool // the cache has another view
	keys   moved

	// Owned by the goroutine that has the turn.
	transmit func()   // c.send, made once
	out      response // to be sent, if ready
	ready    bool
	limit    *time.Timer // ends the stream when one response takes too long
	alarm    *time.Timer // wakes the stream
	alarmAt  time.Time   // when alarm is due; zero: it is not set

	mu             sync.Mutex     // protects what follows
	state          *stream.Stream // nil: not begun, or ended
	inFirstAnswers bool           // it has a place among the first responses
	responded      bool           // something was sent
	asking         bool           // a goroutine asks for the head
	toReport       bool           // the report has changed
	held           held           // what the stream pays for
	class          index.ProxyClass
	group          string // class, printed
	waiting        int    // bytes of requests that wait in state, which the address pays for
}

// A stream that has sent no request after firstRequestWithin ends. One whose first
// request is on its way may take slowFirstRequest.
const (
	firstRequestWithin = 5 * time.Second
	slowFirstRequest   = 30 * time.Second
)

// messageHead is what gRPC sends before each message.
const messageHead = 5

// serve runs a stream. It returns when the client leaves or does not accept a
// response, when the stream reaches its maximum age, or when the frontend
// drains. It stays small, because its stack exists as long as the stream.
func (s *Server) serve(gs grpc.ServerStream, m mode) error {
	c := &conn{server: s, grpc: gs, mode: m, ended: make(chan error, 1)}
	if err := s.begin(c); err != nil {
		return s.refuse(c.address, err)
	}
	go c.run()
	return c.untilEnd()
}

// untilEnd returns why the stream ends, when it does.
func (c *conn) untilEnd() error {
	select {
	case err := <-c.ended:
		return err
	case <-c.grpc.Context().Done():
		return status.FromContextError(c.grpc.Context().Err()).Err()
	}
}

// end ends the stream with err for the client. The first call counts.
func (c *conn) end(err error) {
	select {
	case c.ended <- err:
	default: // it is ending already
	}
}

// receive receives a request. If it returns false, the stream ends with err;
// nil: the client is done.
func (c *conn) receive(r *request) (ok bool, err error) {
	switch err := c.grpc.RecvMsg(r); {
	case errors.Is(err, io.EOF):
		return false, nil
	case status.Code(err) == codes.ResourceExhausted: // larger than maxRequest
		return false, c.server.refuseRequest(c.address, "size", codes.ResourceExhausted, err)
	case err != nil:
		return false, err
	case r.malformed != nil:
		return false, c.server.refuseRequest(c.address, "malformed", codes.InvalidArgument, r.malformed)
	}
	return true, nil
}

// run is the stream from its first request to its end.
func (c *conn) run() {
	defer c.server.finish(c)
	r := &request{delta: c.mode.delta, wantNode: true}
	defer c.drop(r) // what is left of it when the stream ends
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

// take handles requests, beginning with r, until there are no more.
func (c *conn) take(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	c.begin()
	for ok := true; ok; ok, err = c.receive(r) {
		if err := c.request(r); err != nil {
			return c.server.refuseRequest(c.address, "names", codes.ResourceExhausted, err)
		}
		r.wantNode = false
		c.drop(r)
		c.sendIfIdle()
	}
	return err
}

// drop gives a request back, and its part of the budget.
func (c *conn) drop(r *request) {
	if r.buffer == nil && r.size == 0 {
		return
	}
	size := r.size
	r.free()
	c.meter.decoded(size + messageHead)
}

// enter receives the first request, which names the client, and waits until the
// stream may begin. After an error, leave must not be called.
func (c *conn) enter(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	if ok, err := c.identify(r); !ok {
		return err
	}
	if err := c.notForSinks(); err != nil {
		return c.server.refuse(c.address, err)
	}
	c.proxy.Delta = c.mode.delta
	if err := c.server.admit(c); err != nil {
		return c.server.refuse(c.address, err)
	}
	received := r.size
	c.meter.decoded(received - r.dropNode())
	c.resumes = r.resumes()
	if err := c.server.admission.wait(c.grpc.Context(), c.resumes, c.share.address); err != nil {
		return c.server.refuse(c.address, err)
	}
	// Other streams that waited may have made all classes that there is room for.
	if err := c.server.admit(c); err != nil {
		c.server.admission.release(c.share.address)
		return c.server.refuse(c.address, err)
	}
	c.since, c.inFirstAnswers = time.Now(), true
	c.transmit = c.send
	c.limit, c.alarm = stopped(c.tooSlow), stopped(c.wake)
	c.server.register(c) // before the state is read (I6)
	c.server.comings.Info("proxy connected", "proxy", c.proxy.ID, "type", string(c.proxy.Type), "address", c.address,
		"delta", c.mode.delta, "resumes", c.resumes)
	return nil
}

// identify receives the first request, reads who the client is, and compares that with its
// certificate. If it returns false, the stream ends with err.
func (c *conn) identify(r *request) (ok bool, err error) {
	if ok, err = c.first(r); !ok {
		return false, err
	}
	if c.proxy, c.about, err = readNode(r.node, c.server.metadata, c.share.address); errors.As(err, new(*limitError)) {
		return false, c.server.refuse(c.address, err)
	} else if err != nil {
		return false, c.server.refuseRequest(c.address, "node", codes.InvalidArgument, err)
	}
	if err := c.id.check(c.proxy); err != nil {
		c.server.identityMismatch(c.proxy.ID, c.address, err)
		return false, status.Error(codes.PermissionDenied, err.Error())
	}
	return true, nil
}

// first receives the first request, and ends a stream on which none comes.
func (c *conn) first(r *request) (ok bool, err error) {
	c.server.opening.Add(1)
	defer c.server.opening.Add(-1)
	opened := time.Now()
	var came atomic.Bool // Stop does not keep a call that is under way from setting the timer
	defer came.Store(true)
	var silence *time.Timer
	silence = stopped(func() {
		if came.Load() {
			return
		}
		if c.meter.withinRequest() && time.Since(opened) < slowFirstRequest {
			silence.Reset(firstRequestWithin)
			return
		}
		c.server.cfg.Metrics.silent.Inc()
		c.end(status.Errorf(codes.Unavailable, "no request came within %s: the first one carries the node", time.Since(opened).Round(time.Second)))
	})
	silence.Reset(firstRequestWithin)
	defer silence.Stop()
	if ok, err = c.receive(r); !ok && err == nil {
		err = status.Error(codes.InvalidArgument, "the stream ended before its first request, which carries the node")
	}
	return ok, err
}

// begin makes the stream's state. A goroutine that works for the stream
// meanwhile waits for mu.
func (c *conn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = c.server.cache.Join(c.proxy, c.changed, c.payers()...)
	c.state = stream.New(c.config(), c.client.View())
	c.toReport = true
}

// withState calls f with the stream's state under mu, if the stream has begun
// and not ended.
func (c *conn) withState(f func(*stream.Stream)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != nil {
		f(c.state)
	}
}

func (c *conn) config() stream.Config {
	return stream.Config{
		GRPC: c.proxy.GRPC, Delta: c.mode.delta, Only: c.mode.only, Names: c.server.names,
		Linger: c.server.cfg.Limits.Linger, Past: c.client.Past(), Observe: c.observe,
		Secret: func(r *xds.Resource) (*xds.Resource, stream.KeyState) { return c.server.secrets.of(c, r) },
	}
}

// maxAgeReached ends the stream with OK, which no client minds (E40). A GOAWAY
// came before, on which Envoy keeps the stream (E41), so the next stream is on
// another connection, perhaps to another frontend.
func (c *conn) maxAgeReached() {
	c.server.cfg.Metrics.aged.Inc()
	c.end(nil)
}

// leave releases the resources of the stream, after its sender has finished.
func (c *conn) leave() {
	c.server.unregister(c)
	c.server.comings.Info("proxy disconnected", "proxy", c.proxy.ID, "address", c.address, "after", time.Since(c.since).Round(time.Millisecond))
	c.turn.end()
	c.limit.Stop()
	c.alarm.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endFirstAnswers()
	c.state = nil
	c.payNothing()
	if c.client != nil {
		c.client.Leave()
	}
}

// stopped returns a timer that is not set.
func stopped(f func()) *time.Timer {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return t
}

// jitter returns d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// request handles a request.
func (c *conn) request(r *request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.afford(r); err != nil {
		return err
	}
	r.Version = c.server.unlabelled(r.Version)
	if err := c.state.Request(time.Now(), r.Request); err != nil {
		return err
	}
	if err := c.pay(r); err != nil {
		return err
	}
	c.subscribe()
	if c.inFirstAnswers && c.responded && c.firstAnswersAcked() {
		c.endFirstAnswers()
	}
	return c.payWaiting()
}

// subscribe makes the cache wake the stream for the names that the client
// subscribes to, and no others; mu is held.
func (c *conn) subscribe() {
	for t := range ident.ResourceTypes {
		c.client.Watch(t, c.state.Subscription(t))
	}
}

// firstAnswersAcked reports whether the client has acknowledged its first
// responses; mu is held. A new client requests its listeners after all that is
// large.
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

// endFirstAnswers gives the stream's place in the first responses back; mu is
// held.
func (c *conn) endFirstAnswers() {
	if c.inFirstAnswers {
		c.inFirstAnswers = false
		c.server.admission.release(c.share.address)
	}
}
