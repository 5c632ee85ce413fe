package frontend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/mcp"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/internal/address"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/store"
)

const (
	maxRequest = 64 << 20 // a client with 30,000 clusters sends 5 MB (E39)
	// maxHeaders is how many bytes the headers of a stream may have, decoded, which
	// gRPC keeps as long as the stream: a byte on the wire can become a header.
	maxHeaders       = 32 << 10
	maxStreams       = 100_000
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// window is how many bytes of requests a client may send, on a stream and on a
	// connection, before gRPC allows it more. The budget counts what is not read. A
	// fixed size saves the pings by which gRPC would look for a better one, a sixth of
	// what a small change costs. gRPC sends an update when a quarter is used: a window
	// of 64 KiB would need one for each ACK of 1,000 names, a fifth of that cost.
	window = 1 << 20
	// idleConnection is how long a connection may have no stream.
	idleConnection = time.Minute
	// handshakeTime is how long a connection may take to begin.
	handshakeTime = 10 * time.Second
	// stopTimeout is how long the transport may take to end after the drain.
	stopTimeout = time.Second
	// comingsLogged is how many lines a second say that proxies connect, and as many
	// that they disconnect.
	comingsLogged = 10
)

// Server is a frontend.
type Server struct {
	cfg           Config
	streamLog     *loglimit.Logger // for what clients can cause
	comings       *loglimit.Logger // for proxies that connect and disconnect
	replica       *replica.Replica
	cache         *content.Cache
	head          headQuery
	names         *names.Table
	acceptor      *connections
	admission     *admission
	peers         *peers
	budget        *budget
	metadata      *metadataTable
	subscriptions *subscriptions
	secrets       *secrets
	roots         roots
	drains        drains
	sinks         sinks
	opening       atomic.Int64 // streams that have sent no request yet
	codec         codec
	health        *health.Server
	streams       sync.WaitGroup // receiving and asking goroutines of streams

	mu       sync.Mutex // protects what follows
	conns    map[*conn]struct{}
	draining bool
	mismatch *store.MismatchError
	lag      lag
	// unpersisted is when the served version was first missing in the store;
	// zero: the store has it.
	unpersisted time.Time
	suspects    []ident.Rejected // resources that the leader asks about
	lastUrgent  time.Time        // when the last urgent report was made

	recent  recentVersions
	tracer  tracer
	serving atomic.Pointer[replica.State] // nil: nothing yet
}

// New returns a frontend; Run starts it.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(bool) {}
	}
	codec, err := newCodec()
	if err != nil {
		return nil, fmt.Errorf("frontend: %w", err)
	}
	log := cfg.Logger.With("component", "xds")
	s := &Server{
		cfg:           cfg,
		streamLog:     loglimit.New(log, 1),
		comings:       loglimit.New(log, comingsLogged),
		cache:         content.New(cfg.Limits.Classes),
		head:          headQuery{ask: cfg.Head},
		names:         new(names.Table),
		peers:         newPeers(cfg.Limits),
		budget:        newBudget(),
		metadata:      newMetadataTable(),
		subscriptions: newSubscriptions(),
		admission:     newAdmission(cfg.Limits),
		health:        health.NewServer(),
		codec:         codec,
		conns:         make(map[*conn]struct{}),
		tracer:        tracer{spans: cfg.Tracer},
		sinks:         sinks{catalog: mcp.NewCatalog(), all: make(map[*sink]struct{})},
	}
	s.secrets = newSecrets(cfg.Keys, s.cache.Keys, loglimit.New(log, comingsLogged), cfg.Audit)
	s.acceptor = newAcceptor(&s.cfg, s.peers, s.connectionRefused)
	refresh := s.refreshMetrics
	cfg.Metrics.refresh.Store(&refresh)
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	s.replica = replica.New(replica.Config{
		Store: cfg.Store, Logger: cfg.Logger,
		Serve: s.serveState, OnMismatch: s.chainRewound, OnChange: s.persistedChanged,
		Remember: s.updateCache, Earlier: content.Retained,
	})
	return s, nil
}

// Run serves until ctx is done, and then until every stream has ended, spread
// over the drain time. It returns an error only if it cannot serve.
func (s *Server) Run(ctx context.Context) error {
	if err := s.replica.Load(ctx); err != nil {
		s.acceptor.close()
		return fmt.Errorf("frontend: %w", err)
	}
	server := s.transport()

	// Streams are served while others are drained.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(work)
	g.Go(func() error { return s.replica.Run(work, s.cfg.Chain) })
	g.Go(func() error { return s.tracer.run(work) })
	g.Go(func() error { s.sweep(work); return nil })
	g.Go(func() error { return s.secrets.run(work) })
	for _, l := range s.acceptor.listeners {
		g.Go(func() error {
			if err := server.Serve(l); err != nil && !s.acceptor.isClosed() {
				return fmt.Errorf("frontend: serve on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-work.Done(): // a listener failed
		}
		s.stop(work, server)
		stop()
		return nil
	})
	err := g.Wait()
	s.streams.Wait()
	return err
}

// idleClass is how long the resources of a class without clients are kept, or
// twice as long.
const idleClass = time.Minute

func (s *Server) sweep(ctx context.Context) {
	for sleep(ctx, idleClass) {
		s.cache.Sweep()
	}
}

// transport returns the gRPC server. It keeps gRPC's buffers: they are shared,
// and other sizes save neither memory nor time (BenchmarkStreams).
func (s *Server) transport() *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(s.credentials()),
		grpc.ForceServerCodecV2(s.codec),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout,
			// Jittered by a tenth, as MaxAge is: before any stream of the
			// connection ends. 0: never.
			MaxConnectionIdle: idleConnection,
			MaxConnectionAge:  s.cfg.Limits.MaxAge * 3 / 4,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
	for _, service := range s.services() {
		server.RegisterService(service, nil)
	}
	server.RegisterService(s.proxiesOnly(s.drainService()), nil)
	server.RegisterService(s.healthService(), s.health)
	return server
}

// stop refuses new streams, then new connections, and only then ends the open
// streams, so that a client whose stream ends cannot come back to this
// frontend. GracefulStop sends GOAWAY meanwhile. After the drain, or if work is
// done, stop ends what is left at once.
func (s *Server) stop(work context.Context, server *grpc.Server) {
	s.health.Shutdown()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.acceptor.close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		server.GracefulStop()
	}()
	s.drain(work)
	hard := time.AfterFunc(stopTimeout, server.Stop)
	defer hard.Stop()
	<-gone
}

// drain ends the open streams one after the other, so that the clients do not
// all go to the next frontend at once (I38).
func (s *Server) drain(ctx context.Context) {
	conns := s.openStreams()
	s.cfg.OnChange(false)
	s.sinks.end(status.Error(codes.Unavailable, errDraining.Error()))
	for i, c := range conns {
		c.end(status.Error(codes.Unavailable, errDraining.Error()))
		if i < len(conns)-1 && !sleep(ctx, s.cfg.Limits.Drain/time.Duration(len(conns))) {
			return
		}
	}
}

// begin counts a new stream, or returns why it may not begin. A stream that has
// begun calls finish when it has ended.
func (s *Server) begin(c *conn) error {
	if err := s.join(c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(); err != nil {
		c.part()
		return &limitError{"not-ready", status.Error(codes.Unavailable, err.Error())}
	}
	s.streams.Add(1)
	return nil
}

// join counts a stream for its connection, its address and its identity, or returns
// why it may not begin. The stream must part.
func (s *Server) join(c *conn) error {
	from, ok := peer.FromContext(c.grpc.Context())
	if !ok {
		return status.Error(codes.Internal, "the transport does not know the client's address")
	}
	info, ok := from.AuthInfo.(connInfo)
	if !ok {
		return status.Error(codes.Internal, "the connection is not from a listener of the frontend")
	}
	c.address, c.meter = from.Addr.String(), info.conn
	c.meter.forgetRefused()
	if isCompressed(c.grpc.Context()) {
		// A few kilobytes can become the largest request.
		return s.refuseRequest(c.address, "compressed", codes.Unimplemented, errCompressed)
	}
	var err error
	if c.id, err = identityOf(info.AuthInfo); err != nil {
		s.identityMismatch("", c.address, err)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	c.place = place{identity: c.id.name, address: address.Of(from.Addr)}
	if c.share, err = s.peers.enter(c.place); err != nil {
		return err
	}
	c.meter.join(c)
	return nil
}

// part ends what join has begun.
func (c *conn) part() {
	c.meter.leave(c)
	c.share.address.addMetadata(-c.waiting)
	c.share.leave()
}

// finish ends what begin has begun.
func (s *Server) finish(c *conn) {
	s.metadata.release(c.about)
	c.part()
	s.streams.Done()
}

// admit returns why the proxy of a stream cannot be served now, or nil.
func (s *Server) admit(c *conn) error {
	p, err := c.proxy, s.cache.Admit(c.proxy, c.payers()...)
	var share *content.ShareError
	switch {
	case errors.As(err, &share):
		return &limitError{"class-share", status.Errorf(codes.Unavailable,
			"this proxy is in a class of its own, and those of %s have %d already, a tenth of --classes: raise it, or let fewer combinations of selectors match proxies", share.Payer, share.Most)}
	case errors.Is(err, content.ErrStranger):
		return &limitError{"stranger", status.Errorf(codes.Unavailable,
			"no Pod or WorkloadEntry of namespace %s with service account %s has the name or an IP of the node %s: what it is comes from there, and not from the node; if it has just started, it is served once its Pod is known",
			p.Identity.Namespace, p.Identity.ServiceAccount, p.ID)}
	case errors.Is(err, content.ErrFull):
		return &limitError{"classes", status.Errorf(codes.Unavailable,
			"this proxy is in a class of its own, and the frontend keeps no more than the %d of --classes: raise it, or let fewer combinations of selectors match proxies", s.cfg.Limits.Classes)}
	}
	return nil
}

// isCompressed reports whether the client compresses its requests.
func isCompressed(ctx context.Context) bool {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	return ok && s.RecvCompress() != "" && s.RecvCompress() != encoding.Identity
}

// refuse counts a stream that may not begin, and returns the error for the
// client.
func (s *Server) refuse(address string, err error) error {
	var limit *limitError
	if !errors.As(err, &limit) {
		return err
	}
	s.cfg.Metrics.refused.WithLabelValues(limit.reason).Inc()
	if limit.reason != "not-ready" {
		s.streamLog.Warn("refusing a stream: "+limit.reason, "address", address, "reason", limit.Error())
	}
	return limit.err
}

var errCompressed = errors.New("compressed requests are not accepted: turn compression off")

// refuseRequest counts a request that ends its stream, and returns the error for the
// client.
func (s *Server) refuseRequest(address, reason string, code codes.Code, err error) error {
	s.cfg.Metrics.refusedRequests.WithLabelValues(reason).Inc()
	text := status.Convert(err).Message()
	s.streamLog.Warn("refusing a request: "+reason, "address", address, "reason", text)
	return status.Error(code, text)
}

// register adds a stream, so that changes wake it and the drain ends it.
func (s *Server) register(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		c.end(status.Error(codes.Unavailable, errDraining.Error()))
	}
	s.conns[c] = struct{}{}
}

func (s *Server) unregister(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.secrets.leave(c)
	s.cfg.Metrics.age.Observe(time.Since(c.since).Seconds())
	s.cfg.OnChange(false)
}

// openStreams returns the streams that have begun and not ended.
func (s *Server) openStreams() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

var errDraining = errors.New("the frontend is shutting down")

// Ready returns nil if a version is served, else what is missing.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready()
}

// ready is Ready; mu is held.
func (s *Server) ready() error {
	switch {
	case s.draining:
		return errDraining
	case s.serving.Load() == nil:
		return errors.New("no version yet: the local replica has none, and the version chain has delivered none")
	}
	return nil
}

// Following returns why the version chain cannot be followed, nil if it can.
func (s *Server) Following() error { return s.replica.Following() }

// updateCache makes the cache serve a version. An earlier one is replaced at once,
// but clients which reconnect with it are recognised.
func (s *Server) updateCache(st *replica.State, changed []index.Input) {
	s.cache.Update(st.Version(), timeOf(st.Manifest.GetPublishTime()), st.PushContext, changed)
	if s.cfg.Keys != nil {
		s.secrets.keep()
	}
}

// serveState serves a version.
func (s *Server) serveState(st *replica.State, changed []index.Input) {
	v := st.Version()
	had := time.Now()
	next := timesOf(st, had)
	next.trace = s.tracer.received(st, had)
	s.recent.add(next) // before the cache wakes streams, which look for it
	s.updateCache(st, changed)
	if len(s.cfg.SinkListeners) > 0 {
		s.sinks.update(st, changed)
	}
	now := time.Now()
	if s.serving.Swap(st) == nil {
		s.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	}
	s.mu.Lock()
	s.mismatch = nil // it was about an earlier version
	s.lag.serves(now, v)
	if s.unpersisted.IsZero() {
		s.unpersisted = now
	}
	s.mu.Unlock()
	s.cfg.Metrics.serves(st, had, now)
	s.cfg.Logger.Info("serving", append(published.Attrs(st.Manifest), "latency", latency(st, now))...)
	s.cfg.OnChange(false)
}

// latency returns the time from the first observed change in a version until it
// was served; 0 if the version did not just come from the chain.
func latency(st *replica.State, now time.Time) time.Duration {
	observed := timeOf(st.Manifest.GetFirstObservedTime())
	if observed.IsZero() || st.Received.IsZero() {
		return 0
	}
	return now.Sub(observed).Round(100 * time.Microsecond)
}

// HeadIs sets the newest version of the chain, which the lag metrics need. It
// is safe for concurrent use.
func (s *Server) HeadIs(v ident.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag.headIs(time.Now(), v)
}

func (s *Server) chainRewound(err *store.MismatchError) {
	s.mu.Lock()
	first := s.mismatch == nil || *s.mismatch != *err
	s.mismatch = err
	s.mu.Unlock()
	s.cfg.OnChange(first)
}

func (s *Server) persistedChanged() {
	if s.replica.Persisted() {
		s.mu.Lock()
		s.unpersisted = time.Time{}
		s.mu.Unlock()
	}
	s.cfg.OnChange(false)
}

// recoverPanic ends only the stream in which a panic happened; failed gets the
// error for the client (E40).
func (s *Server) recoverPanic(failed func(error)) {
	p := recover()
	if p == nil {
		return
	}
	s.cfg.Metrics.panics.Inc()
	s.streamLog.Error("an internal error; ending the stream in which it happened", "panic", p, "stack", string(debug.Stack()))
	failed(status.Error(codes.Unavailable, "an internal error; see the frontend's log"))
}
