package frontend

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"meshlog.dev/services/mesh/proxy"
)

// credentials are those of the listener that took a connection.
func (s *Server) credentials() credentials.TransportCredentials {
	c := &serverCredentials{TransportCredentials: insecure.NewCredentials()}
	if s.cfg.TLS != nil {
		c.tls = credentials.NewTLS(s.cfg.TLS)
	}
	c.failed = s.handshakeFailed
	return c
}

type serverCredentials struct {
	credentials.TransportCredentials // of connections without TLS

	tls    credentials.TransportCredentials
	failed func(net.Addr, error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	accepted, ok := raw.(*acceptedConn)
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T, not from a listener of the frontend", raw)
	}
	if !accepted.tls {
		return c.TransportCredentials.ServerHandshake(accepted.Conn)
	}
	conn, info, err := c.tls.ServerHandshake(accepted.Conn)
	if err != nil && !accepted.acceptor.isClosed() {
		c.failed(raw.RemoteAddr(), err)
	}
	return conn, info, err
}

// handshakeLogs is the time between two log lines about failed handshakes:
// anybody who reaches the port can make them fail.
const handshakeLogs = time.Second

// handshakes are those that failed.
type handshakes struct{ logged atomic.Int64 } // the last one that was logged, Unix nanoseconds

func (s *Server) handshakeFailed(from net.Addr, err error) {
	if errors.Is(err, io.EOF) {
		return // a probe looked whether the port is open
	}
	s.cfg.Metrics.handshakeFailures.Inc()
	now, logged := time.Now().UnixNano(), s.failed.logged.Load()
	if now-logged >= int64(handshakeLogs) && s.failed.logged.CompareAndSwap(logged, now) {
		s.streamLog.Warn("a TLS handshake failed; more within a second are only counted", "address", from.String(), "error", err)
	}
}

func (s *Server) identityMismatch(p *proxy.Proxy, address string, err error) {
	s.cfg.Metrics.identityMismatches.Inc()
	s.streamLog.Warn("a proxy is not who its certificate says; it is refused", "proxy", p.ID, "address", address, "error", err)
}

// checkIdentity compares who a client says it is with its certificate, where
// that has an identity in the form of Istio's,
// spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT. Other identities say
// nothing of a namespace, nor does a connection without a certificate.
func checkIdentity(info credentials.AuthInfo, p *proxy.Proxy) error {
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok || len(tlsInfo.State.PeerCertificates) == 0 {
		return nil
	}
	for _, u := range tlsInfo.State.PeerCertificates[0].URIs {
		if u.Scheme != "spiffe" {
			continue
		}
		if len(tlsInfo.State.PeerCertificates[0].URIs) > 1 {
			return fmt.Errorf("the client's certificate has an identity, %s, and other URIs beside it: make one with that alone", u)
		}
		parts := strings.Split(u.Path, "/")
		if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
			return nil
		}
		if p.Namespace != parts[2] {
			return fmt.Errorf("the node is of namespace %s, the client's certificate of %s (%s): correct metadata NAMESPACE or the id in the node, or the certificate", p.Namespace, parts[2], u)
		}
		if sa := p.Metadata.GetFields()["SERVICE_ACCOUNT"].GetStringValue(); sa != "" && sa != parts[4] {
			return fmt.Errorf("the node is of service account %s, the client's certificate of %s (%s): correct metadata SERVICE_ACCOUNT in the node, or the certificate", sa, parts[4], u)
		}
	}
	return nil
}
