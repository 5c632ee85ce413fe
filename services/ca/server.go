// Package ca is the certificate authority of the mesh: a gRPC server with TLS that
// gives workloads certificates for their identity (CA-2). It speaks Istio's protocol,
// so that Istio's agents can use it.
package ca

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	authv1 "istio.io/api/security/v1alpha1"

	"meshlog.dev/services/internal/loglimit"
)

// Sizes and times of the port.
const (
	maxMessage = 64 << 10 // a request is a certificate request and little else
	maxHeaders = 32 << 10 // with a token of authn.MaxToken bytes
	maxStreams = 100
	window     = 64 << 10 // of a connection; gRPC's least

	handshakeTime  = 10 * time.Second
	requestTime    = 10 * time.Second
	idleConnection = 5 * time.Minute
	// connectionAge spreads clients over the replicas.
	connectionAge    = 30 * time.Minute
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	stopTime         = 5 * time.Second
	linesPerSecond   = 10
)

// Server is a CA's port.
type Server struct {
	cfg     Config
	log     *loglimit.Logger // for what clients can cause
	callers *callers
}

// New returns a server; Run starts it.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: loglimit.New(cfg.Logger.With("component", "ca"), linesPerSecond), callers: newCallers(cfg.Limits)}
	cfg.Metrics.authority.Store(&s.cfg.Authority)
	return s, nil
}

// Run serves until ctx is done. It returns an error only if it cannot serve.
func (s *Server) Run(ctx context.Context) error {
	server := s.transport()
	g, work := errgroup.WithContext(ctx)
	for _, l := range s.cfg.Listeners {
		g.Go(func() error {
			err := server.Serve(listener{l, s.callers, s.connectionRefused(l)})
			if err != nil && ctx.Err() == nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("ca: serve on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-work.Done() // ctx, or a listener failed
		hard := time.AfterFunc(stopTime, server.Stop)
		defer hard.Stop()
		server.GracefulStop()
		return nil
	})
	return g.Wait()
}

func (s *Server) connectionRefused(l net.Listener) func() {
	return func() {
		s.cfg.Metrics.connectionsRefused.Inc()
		s.log.Warn("closing a connection: its address has too many, or opens them too often", "port", l.Addr().String(), "limit", s.cfg.Limits.Connections)
	}
}

func (s *Server) transport() *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(&serverCredentials{credentials.NewTLS(askForCertificates(s.cfg.TLS)), s}),
		grpc.UnaryInterceptor(s.recoverPanic),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: idleConnection, MaxConnectionAge: connectionAge,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
	authv1.RegisterIstioCertificateServiceServer(server, service{server: s})
	return server
}

// askForCertificates returns a server's configuration that asks clients for a
// certificate and takes any or none: authenticators check it, at each request. No
// session is resumed, so what a client shows, it has shown in this handshake (CA-14).
func askForCertificates(base *tls.Config) *tls.Config {
	ask := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.ClientAuth, c.ClientCAs, c.SessionTicketsDisabled = tls.RequestClientCert, nil, true
		return c
	}
	asking := ask(base)
	asking.MinVersion = max(asking.MinVersion, tls.VersionTLS12)
	if choose := base.GetConfigForClient; choose != nil {
		asking.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := choose(h)
			if c == nil || err != nil {
				return nil, err // nil: asking itself
			}
			return ask(c), nil
		}
	}
	return asking
}

// serverCredentials counts and logs handshakes that fail.
type serverCredentials struct {
	credentials.TransportCredentials
	server *Server
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil && !errors.Is(err, io.EOF) { // EOF: a probe of the port
		c.server.cfg.Metrics.handshakes.Inc()
		c.server.log.Warn("a TLS handshake failed", "address", raw.RemoteAddr().String(), "error", err)
	}
	return conn, info, err
}

// recoverPanic ends only the request in which a panic happened.
func (s *Server) recoverPanic(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Metrics.panics.Inc()
			s.log.Error("a request ended by an internal error; please report it", "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "internal error: see the CA's log")
		}
	}()
	return handle(ctx, req)
}
