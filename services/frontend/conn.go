package frontend

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/store"
)

// conn is one ADS stream. Its handler, the goroutine that grpc starts for it,
// owns the state; one goroutine receives and one sends, and both end with the
// stream.
type conn struct {
	server  *Server
	grpc    grpc.ServerStream
	proxy   *model.Proxy
	address string
	since   time.Time

	wake chan struct{} // there is another view; latest wins
	end  chan struct{} // closed by the drain

	requests chan stream.Request
	received chan error // why receiving ended
	out      chan *response
	sent     chan error
	heads    chan headAnswer

	// Of the handler.
	client *content.Client
	state  *stream.Stream
	head   *store.Version // to be reached before a client that knows more is answered
	asking bool
	news   bool // something to report
	class  model.ProxyClass
	group  string // class, printed

	status atomic.Pointer[connStatus] // for reports
}

type connStatus struct {
	stream.Status
	group string
}

type headAnswer struct {
	version store.Version
	err     error
}

// serve runs a stream. It returns when the client leaves, does not take what
// it is sent, or the frontend drains.
func (s *Server) serve(gs grpc.ServerStream) error {
	if err := s.admit(); err != nil {
		s.cfg.Metrics.Refused.Inc()
		return err
	}
	first := request{wantNode: true}
	if err := gs.RecvMsg(&first); err != nil {
		return err
	}
	proxy, err := readNode(first.node)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	c := &conn{
		server: s, grpc: gs, proxy: proxy, since: time.Now(),
		wake: make(chan struct{}, 1), end: make(chan struct{}),
		requests: make(chan stream.Request, 1), received: make(chan error, 1),
		out: make(chan *response), sent: make(chan error, 1), heads: make(chan headAnswer, 1),
	}
	if p, ok := peer.FromContext(gs.Context()); ok {
		c.address = addressOf(p.Addr)
	}
	if err := s.register(c); err != nil { // before the state is read (I6)
		return err
	}
	defer s.unregister(c)
	c.client = s.cache.Join(proxy)
	defer c.client.Leave()
	c.state = stream.New(stream.Config{
		GRPC: proxy.GRPC, Linger: s.cfg.Limits.Linger, Past: c.client.Past(), Observe: c.observe,
	}, c.client.View())
	c.news = true
	c.requests <- first.Request
	s.streams.Go(c.receive)
	s.streams.Go(c.transmit)
	return c.run(gs.Context())
}

func readNode(b []byte) (*model.Proxy, error) {
	if b == nil {
		return model.NewProxy(nil)
	}
	node := new(corev3.Node)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, node); err != nil {
		return nil, err
	}
	return model.NewProxy(node)
}

func addressOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// run is the stream's loop: one thing at a time, requests before pushes (I8).
func (c *conn) run(ctx context.Context) error {
	defer close(c.out)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := c.push(ctx); err != nil {
			return err
		}
		c.askHead(ctx)
		c.publish()
		timer.Reset(untilWake(c.state.Wake()))
		select {
		case r := <-c.requests:
			c.state.Request(time.Now(), r)
		case <-c.wake:
			c.update()
		case <-timer.C:
		case a := <-c.heads:
			c.answered(a)
		case err := <-c.received:
			if errors.Is(err, io.EOF) {
				return nil // the client is done
			}
			return err
		case <-c.end:
			return status.Error(codes.Unavailable, "the frontend is going away")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func untilWake(at time.Time) time.Duration {
	if at.IsZero() {
		return time.Hour
	}
	return max(0, time.Until(at))
}

// push sends what is to be sent. What comes in meanwhile counts before the
// next response.
func (c *conn) push(ctx context.Context) error {
	for {
		select {
		case r := <-c.requests:
			c.state.Request(time.Now(), r)
			continue
		case <-c.wake:
			c.update()
			continue
		default:
		}
		r, ok := c.state.Next(time.Now())
		if !ok {
			return nil
		}
		// What the client said before is known before it hears of it.
		c.publish()
		if err := c.send(ctx, r); err != nil {
			return err
		}
	}
}

// send gives a response to the transport, and up on a client that does not
// take it.
func (c *conn) send(ctx context.Context, r stream.Response) error {
	m := c.server.cfg.Metrics
	size := 0
	for _, resource := range r.Resources {
		size += resource.Size()
	}
	start := time.Now()
	limit := time.NewTimer(c.server.cfg.Limits.SendTimeout)
	defer limit.Stop()
	c.out <- &response{r, c.server.cfg.ID} // the sender is idle
	select {
	case err := <-c.sent:
		if err != nil {
			return err
		}
	case <-limit.C:
		m.SendTimeout.Inc()
		return status.Errorf(codes.Unavailable, "the client did not take a response in %s", c.server.cfg.Limits.SendTimeout)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	name := r.Type.String()
	m.Pushes.WithLabelValues(name).Inc()
	m.Bytes.WithLabelValues(name).Observe(float64(size))
	m.SendSeconds.Observe(time.Since(start).Seconds())
	return nil
}

// transmit sends for the handler, which can give up waiting; grpc cannot.
func (c *conn) transmit() {
	for r := range c.out {
		c.sent <- c.grpc.SendMsg(r)
	}
}

// receive reads requests until the stream ends; grpc ends it when the handler
// has returned.
func (c *conn) receive() {
	ctx := c.grpc.Context()
	for {
		var r request
		if err := c.grpc.RecvMsg(&r); err != nil {
			c.received <- err
			return
		}
		select {
		case c.requests <- r.Request:
		case <-ctx.Done():
			return
		}
	}
}

// askHead asks for the head of the chain where the client names versions that
// are unknown here, until there is an answer.
func (c *conn) askHead(ctx context.Context) {
	if !c.state.WantsHead() || c.asking {
		return
	}
	c.asking = true
	c.server.streams.Go(func() {
		for {
			v, err := c.server.heads.head(ctx)
			select {
			case c.heads <- headAnswer{v, err}:
			case <-ctx.Done():
			}
			if err == nil || !sleep(ctx, headRetry) {
				return
			}
		}
	})
}

// sleep waits for d. It says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *conn) answered(a headAnswer) {
	if a.err != nil {
		c.state.HeadAway()
		return
	}
	c.head = &a.version
	c.update()
}

// update takes in what is served now.
func (c *conn) update() {
	now, view := time.Now(), c.client.View()
	c.state.Update(now, view)
	if c.head != nil && !view.Version.Less(*c.head) {
		c.state.HeadConfirmed(now)
	}
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // it is told already
	}
}

// publish makes the client's status known to reports.
func (c *conn) publish() {
	if class := c.client.Class(); c.group == "" || class != c.class {
		c.class, c.group = class, class.String()
	}
	c.status.Store(&connStatus{c.state.Status(), c.group})
	if c.news {
		c.news = false
		c.server.cfg.OnChange()
	}
}
