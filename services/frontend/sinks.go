package frontend

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/mcp"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/store"
)

// Limits of the streams of sinks: a mesh has few of them, and each may be sent all that the
// mesh has.
const (
	maxSinks        = 256
	sinksPerAddress = 32
)

// adsMethod is the one method that sinks may call.
const adsMethod = "StreamAggregatedResources"

// Metadata of a node, as in Istio: a client with the generator api is a sink.
const (
	generator    = "GENERATOR"
	apiGenerator = "api"
	revision     = "ISTIO_REVISION"
)

// sinks are the streams of MCP-over-xDS, and what they are sent.
type sinks struct {
	catalog *mcp.Catalog

	mu    sync.Mutex // protects what follows
	all   map[*sink]struct{}
	ended error // why new ones may not begin; nil: they may
}

// sink is one stream. Its handler waits for the reason to end, one goroutine receives, and
// another one sends.
type sink struct {
	*conn               // counts for the limits; it has no state
	wakes chan struct{} // has room for one

	mu    sync.Mutex
	state *mcp.Stream
}

// update makes sinks get a version.
func (s *sinks) update(st *replica.State, changed []index.Input) {
	s.catalog.Update(st.Version(), st.World, st.PushContext, changed)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		c.wakeUp()
	}
}

// end ends all streams, and lets none begin any more.
func (s *sinks) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = err
	for c := range s.all {
		c.conn.end(err)
	}
}

// enter adds a stream, or returns why it may not begin.
func (s *sinks) enter(c *sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	same := 0
	for other := range s.all {
		if other.place.address == c.place.address {
			same++
		}
	}
	if len(s.all) >= maxSinks || same >= sinksPerAddress {
		return &limitError{"sinks", status.Errorf(codes.Unavailable,
			"%d clients of MCP-over-xDS have streams already, and %d at this address; the limits are %d and %d: use another frontend", len(s.all), same, maxSinks, sinksPerAddress)}
	}
	s.all[c] = struct{}{}
	return nil
}

func (s *sinks) leave(c *sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// list returns the streams, sorted by client and age.
func (s *sinks) list() []*sink {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *sink) int {
		return cmp.Or(strings.Compare(a.proxy.ID, b.proxy.ID), a.since.Compare(b.since))
	})
	return all
}

// forSinks reports whether a stream is on a connection for sinks.
func forSinks(gs grpc.ServerStream) bool {
	from, ok := peer.FromContext(gs.Context())
	if !ok {
		return false
	}
	info, ok := from.AuthInfo.(connInfo)
	return ok && info.conn.accepted.sinks
}

// proxiesOnly returns a service whose methods have no effect on the port of sinks, but for the
// one that sinks call.
func (s *Server) proxiesOnly(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	for i := range d.Streams {
		m := &d.Streams[i]
		handler := m.Handler
		m.Handler = func(srv any, gs grpc.ServerStream) error {
			switch {
			case !forSinks(gs):
				return handler(srv, gs)
			case m.StreamName == adsMethod:
				return s.serveSink(gs)
			}
			return status.Error(codes.Unimplemented, "this port serves MCP-over-xDS only: aggregated streams in state of the world")
		}
	}
	return d
}

// notForSinks returns why a client of the Envoys' port is refused: what a sink reads is of all
// namespaces (MCP-6).
func (c *conn) notForSinks() error {
	if c.proxy.Text(generator) != apiGenerator {
		return nil
	}
	return &limitError{"generator", status.Error(codes.PermissionDenied,
		"this port is for proxies, and the node asks for GENERATOR api: MCP-over-xDS has a port of its own, --mcp-listen")}
}

// serveSink runs the stream of a sink.
func (s *Server) serveSink(gs grpc.ServerStream) error {
	c := &sink{conn: &conn{server: s, grpc: gs, ended: make(chan error, 1)}, wakes: make(chan struct{}, 1)}
	if err := s.begin(c.conn); err != nil {
		return s.refuse(c.address, err)
	}
	go c.run()
	return c.untilEnd()
}

// run is the stream from its first request to its end.
func (c *sink) run() {
	defer c.server.finish(c.conn)
	r := &request{wantNode: true}
	defer c.drop(r)
	if err := c.enter(r); err != nil {
		c.end(err)
		return
	}
	defer c.leave()
	c.server.streams.Add(1)
	go func() {
		defer c.server.streams.Done()
		c.send()
	}()
	c.end(c.take(r))
}

// enter receives the first request, which names the client. After an error, leave must not be
// called.
func (c *sink) enter(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	if ok, err := c.identify(r); !ok {
		return err
	}
	if c.proxy.Text(generator) != apiGenerator {
		return c.server.refuse(c.address, &limitError{"generator", status.Error(codes.PermissionDenied,
			"this port serves MCP-over-xDS, and the node does not ask for GENERATOR api: proxies have a port of their own, --listen or --tls-listen")})
	}
	c.state = mcp.NewStream(c.server.sinks.catalog, c.proxy.Namespace, c.proxy.Text(revision), fmt.Sprintf("%08x-", rand.Uint32())) //nolint:gosec // nonces of streams are to differ
	if err := c.state.Refusal(); err != nil {
		return c.server.refuse(c.address, &limitError{"sink", err})
	}
	if err := c.server.admission.wait(c.grpc.Context(), false, c.share.address); err != nil {
		return c.server.refuse(c.address, err)
	}
	c.server.admission.release(c.share.address)
	c.since, c.limit = time.Now(), stopped(c.tooSlow)
	if err := c.server.sinks.enter(c); err != nil {
		return c.server.refuse(c.address, err)
	}
	c.server.comings.Info("sink connected", "sink", c.proxy.ID, "namespace", c.proxy.Namespace, "address", c.address)
	c.server.cfg.OnChange(false)
	return nil
}

func (c *sink) leave() {
	c.server.sinks.leave(c)
	c.limit.Stop()
	c.server.comings.Info("sink disconnected", "sink", c.proxy.ID, "address", c.address, "after", time.Since(c.since).Round(time.Millisecond))
	c.server.cfg.OnChange(false)
}

// wakeUp makes the sender look for a response. It does not block.
func (c *sink) wakeUp() {
	select {
	case c.wakes <- struct{}{}:
	default:
	}
}

// take handles requests, beginning with r, until there are no more.
func (c *sink) take(r *request) (err error) {
	defer c.server.recoverPanic(func(failed error) { err = failed })
	for ok := true; ok; ok, err = c.receive(r) {
		if err := c.request(r); err != nil {
			return err
		}
		r.wantNode = false
		c.drop(r)
		c.wakeUp()
	}
	return err
}

// answer tells the state about a request.
func (c *sink) answer(r *request) (*mcp.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Request(time.Now(), mcp.Request{
		Type: r.TypeURL, Nonce: r.Nonce, Named: r.Names.Len() > 0, Rejected: r.Rejected, Error: r.Error,
	})
}

func (c *sink) request(r *request) error {
	answer, err := c.answer(r)
	switch {
	case err != nil:
		return c.server.refuseRequest(c.address, "sink", status.Code(err), err)
	case answer == nil:
		return nil
	case answer.Rejected:
		c.server.cfg.Metrics.sinkRejects.WithLabelValues(kindLabel(answer.Kind)).Inc()
		c.server.streamLog.Warn("a sink rejected a response", "sink", c.proxy.ID, "type", r.TypeURL, "message", r.Error)
	}
	c.server.cfg.OnChange(false)
	return nil
}

// next returns the next response, nil if none is due, or why the stream ends.
func (c *sink) next() (*mcp.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Next(time.Now())
}

// send sends what is due until the stream ends.
func (c *sink) send() {
	defer c.server.recoverPanic(c.end)
	for {
		select {
		case <-c.wakes:
		case <-c.grpc.Context().Done():
			return
		}
		for {
			r, err := c.next()
			if err == nil && r != nil {
				err = c.sendOut(r)
			}
			if err != nil {
				c.end(err)
				return
			}
			if r == nil {
				break
			}
		}
	}
}

func (c *sink) sendOut(r *mcp.Response) error {
	c.limit.Reset(c.server.cfg.Limits.SendTimeout)
	err := c.grpc.SendMsg(&sinkResponse{r, c.server.cfg.ID})
	c.limit.Stop()
	if err == nil {
		m := c.server.cfg.Metrics
		m.sinkPushes.WithLabelValues(kindLabel(r.Kind)).Inc()
		m.sinkBytes.Add(float64(r.Set.Size))
	}
	return err
}

// kindLabel returns the label of a kind in metrics.
func kindLabel(kind string) string { return cmp.Or(kind, unknownKind) }

const unknownKind = "unknown"

// report returns the state of the stream: the types are those of MCP-over-xDS.
func (c *sink) report() *reportv1.ProxyReport {
	p := c.clientReport()
	p.Type, p.Group = "sink", c.proxy.Text(revision)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.state.Status() {
		r := &reportv1.TypeReport{
			TypeUrl: t.Type, Sent: store.VersionProto(t.Sent), Acked: store.VersionProto(t.Acked),
			SentVersion: t.SentVersion, AckedVersion: t.AckedVersion,
			SentTime: timestamp(t.SentAt), AckedTime: timestamp(t.AckedAt), Resources: uint32(t.Resources),
		}
		if t.Waits {
			r.Unanswered = r.GetSentTime()
		}
		if t.Nack != nil {
			r.Nack = &reportv1.Nack{Message: t.Nack.Message, Time: timestamp(t.Nack.At), Version: t.SentVersion}
		}
		p.Types = append(p.Types, r)
	}
	return p
}

// sinkResponse is a DiscoveryResponse of MCP-over-xDS.
type sinkResponse struct {
	*mcp.Response
	identifier string // of the frontend
}

// buffers returns the head, which belongs to this response, and the set, which streams share.
func (r *sinkResponse) buffers() mem.BufferSlice {
	head := make([]byte, 0, len(r.Set.Version)+len(r.Type)+len(r.Nonce)+len(r.identifier)+16)
	head = appendText(head, responseVersion, r.Set.Version)
	head = appendText(head, responseType, r.Type)
	head = appendText(head, responseNonce, r.Nonce)
	head = appendControlPlane(head, responseControlPlane, r.identifier)
	all := append(make(mem.BufferSlice, 0, 1+len(r.Set.Slices)), mem.SliceBuffer(head))
	for _, b := range r.Set.Slices {
		all = append(all, mem.SliceBuffer(b))
	}
	return all
}
