package frontend

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// credentials returns, for each connection, the credentials of its listener.
func (s *Server) credentials() credentials.TransportCredentials {
	c := &serverCredentials{TransportCredentials: insecure.NewCredentials(), server: s}
	if conf := s.cfg.TLS; conf != nil {
		if s.cfg.MeshClients {
			conf = s.meshClients(conf)
		}
		c.tls = credentials.NewTLS(conf)
	}
	if conf := s.cfg.SinkTLS; conf != nil {
		c.sinks = credentials.NewTLS(conf)
	}
	return c
}

type serverCredentials struct {
	credentials.TransportCredentials // of connections without TLS

	tls, sinks credentials.TransportCredentials
	server     *Server
}

// connInfo is what streams know about their connection.
type connInfo struct {
	credentials.AuthInfo
	conn *meteredConn
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	accepted, ok := raw.(*acceptedConn)
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T, not from a listener of the frontend", raw)
	}
	shake := c.TransportCredentials.ServerHandshake
	switch {
	case accepted.tls && accepted.sinks:
		shake = c.sinks.ServerHandshake
	case accepted.tls:
		shake = c.tls.ServerHandshake
	}
	conn, info, err := shake(accepted.Conn)
	if err != nil {
		if !accepted.acceptor.isClosed() {
			c.server.handshakeFailed(raw.RemoteAddr(), err)
		}
		return nil, nil, err
	}
	metered := newMeteredConn(conn, accepted, c.server.budget, c.server.overBudget)
	metered.unused = c.server.cfg.Metrics.unused.Inc
	metered.endAt(certificateEnds(info))
	return metered, connInfo{info, metered}, nil
}

// certificateEnds returns when the client's certificate ends; zero: it has shown none.
func certificateEnds(info credentials.AuthInfo) time.Time {
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.PeerCertificates) > 0 {
		return t.State.PeerCertificates[0].NotAfter
	}
	return time.Time{}
}

// meshClients returns the configuration of a port that takes clients with a certificate
// under the roots of the mesh, those of the served version, beside what base takes. So a
// root that the CA announces is trusted before a certificate under it is issued (CA-10).
// No session is resumed: its certificate may be under a root that was removed.
func (s *Server) meshClients(base *tls.Config) *tls.Config {
	conf := base.Clone()
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		of := base
		if base.GetConfigForClient != nil {
			now, err := base.GetConfigForClient(hello)
			if err != nil {
				return nil, err
			}
			of = now
		}
		c := of.Clone()
		c.ClientAuth, c.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, true
		c.ClientCAs = x509.NewCertPool() // without one, Go would take the CAs of the machine
		if of.ClientCAs != nil {
			c.ClientCAs = of.ClientCAs.Clone()
		}
		if st := s.serving.Load(); st != nil {
			bundle := st.PushContext.TrustBundle()
			for _, root := range bundle.GetRoots() {
				c.ClientCAs.AppendCertsFromPEM([]byte(root.GetCertificate()))
			}
			c.VerifyConnection = notRevoked(bundle.GetCrl())
		}
		return c, nil
	}
	return conf
}

// overBudget ends the streams of a connection whose requests take too much
// memory.
func (s *Server) overBudget(c *meteredConn, reason error) {
	s.cfg.Metrics.overBudget.Inc()
	s.streamLog.Warn("the requests of a client take too much memory; ending its streams",
		"address", c.RemoteAddr().String(), "limit", requestMemory)
	c.mu.Lock()
	defer c.mu.Unlock()
	for stream := range c.streams {
		stream.end(reason)
	}
}

func (s *Server) handshakeFailed(from net.Addr, err error) {
	if errors.Is(err, io.EOF) {
		return // a probe of the port
	}
	s.cfg.Metrics.handshakeFailures.Inc()
	s.streamLog.Warn("a TLS handshake failed", "address", from.String(), "error", err)
}

// connectionRefused counts a connection that was closed because its address has
// too many.
func (s *Server) connectionRefused(from net.Addr) {
	s.cfg.Metrics.refused.WithLabelValues("connections").Inc()
	s.streamLog.Warn("closing a connection: its address has too many",
		"address", from.String(), "limit", s.cfg.Limits.StreamsPerAddress)
}

// identityMismatch counts and logs a client whose certificate is for another one;
// proxy is its id, empty if it has sent none yet.
func (s *Server) identityMismatch(proxy, address string, err error) {
	s.cfg.Metrics.identityMismatches.Inc()
	s.streamLog.Warn("refusing a proxy: its node does not match its certificate",
		"proxy", proxy, "address", address, "error", err)
}
