package frontend

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"meshlog.dev/services/mesh/proxy"
)

// credentials returns, for each connection, the credentials of its listener.
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

// handshakeLogs is the least time between two log lines about failed
// handshakes: every client that reaches the port can make them fail.
const handshakeLogs = time.Second

func (s *Server) handshakeFailed(from net.Addr, err error) {
	if errors.Is(err, io.EOF) {
		return // a probe of the port
	}
	s.cfg.Metrics.handshakeFailures.Inc()
	now, logged := time.Now().UnixNano(), s.handshakeLogged.Load()
	if now-logged >= int64(handshakeLogs) && s.handshakeLogged.CompareAndSwap(logged, now) {
		s.streamLog.Warn("a TLS handshake failed; further ones within a second are only counted", "address", from.String(), "error", err)
	}
}

func (s *Server) identityMismatch(p *proxy.Proxy, address string, err error) {
	s.cfg.Metrics.identityMismatches.Inc()
	s.streamLog.Warn("refusing a proxy: its node does not match its certificate", "proxy", p.ID, "address", address, "error", err)
}

// checkIdentity compares the client's namespace and service account with its
// certificate, if the certificate has an identity in Istio's form,
// spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT. Other identities, and
// connections without a certificate, restrict nothing.
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
			return fmt.Errorf("the client's certificate has the identity %s and other URIs: issue one with that URI alone", u)
		}
		parts := strings.Split(u.Path, "/")
		if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
			return nil
		}
		if p.Namespace != parts[2] {
			return fmt.Errorf("the node is in namespace %s, the client's certificate is for %s (%s): correct metadata NAMESPACE or the id in the node, or the certificate", p.Namespace, parts[2], u)
		}
		if sa := p.Metadata.GetFields()["SERVICE_ACCOUNT"].GetStringValue(); sa != "" && sa != parts[4] {
			return fmt.Errorf("the node has service account %s, the client's certificate is for %s (%s): correct metadata SERVICE_ACCOUNT in the node, or the certificate", sa, parts[4], u)
		}
	}
	return nil
}
