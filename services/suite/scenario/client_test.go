package scenario

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/mesh/simulate"
)

// hello is what a bare connection sends, and what comes back if it arrives.
const hello = "hello\n"

// client makes calls as their callers would: from their address, with their certificate and
// their token.
type client struct{ ca *certtest.CA }

// dial opens the connection of a call to an Envoy that reads the PROXY protocol: the
// destination is that of the call, and the caller's port is source. Envoy is HOST:PORT, or the
// path of a Unix socket.
func (client) dial(c simulate.Call, envoy string, source int) (net.Conn, error) {
	from, to := c.From, c.Address
	if !from.IsValid() {
		from = netip.MustParseAddr("127.0.0.1")
	}
	if !to.IsValid() {
		to = netip.MustParseAddr("192.0.2.250") // no listener has it
	}
	network, dialer := "tcp", &net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: patience}
	if strings.HasPrefix(envoy, "/") {
		network, dialer.LocalAddr = "unix", nil
	}
	conn, err := dialer.Dial(network, envoy)
	if err != nil {
		return nil, err
	}
	family := "TCP4"
	if to.Is6() {
		family, from = "TCP6", netip.AddrFrom16(from.As16())
	}
	if _, err = fmt.Fprintf(conn, "PROXY %s %s %s %d %d\r\n", family, from, to, source, c.Port); err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// handshake begins TLS on a connection, if the call does.
func (cs client) handshake(c simulate.Call, conn net.Conn) (net.Conn, error) {
	if !c.TLS {
		return conn, nil
	}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: c.ServerName, NextProtos: c.ALPN, MinVersion: tls.VersionTLS12} //nolint:gosec // the listener is ours
	if c.Certificate != nil {
		config.Certificates = []tls.Certificate{cs.ca.Peer("caller", c.Certificate.URIs...).TLS()}
		if c.ALPN == nil {
			config.NextProtos = simulate.MeshALPN(c.TCP)
		}
	}
	secure := tls.Client(conn, config)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return secure, secure.HandshakeContext(ctx)
}

// kept is a connection that keeps what was read.
type kept struct {
	net.Conn
	read bytes.Buffer
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	k.read.Write(b[:n])
	return n, err
}

// call makes a call on a connection. It returns the response to a request, or whether a bare
// connection arrives.
func (cs client) call(c simulate.Call, raw net.Conn) (response *http.Response, arrives bool, err error) {
	first := &kept{Conn: raw}
	conn, err := cs.handshake(c, first)
	if errors.As(err, new(tls.RecordHeaderError)) { // the answer to the handshake may be HTTP
		response, err = http.ReadResponse(bufio.NewReader(io.MultiReader(&first.read, raw)), nil)
		return response, false, err
	}
	if err != nil {
		return nil, false, err
	}
	if c.TCP {
		if _, err := io.WriteString(conn, hello); err != nil {
			return nil, false, err
		}
		r := bufio.NewReader(conn)
		if start, err := r.Peek(len("HTTP/")); err == nil && string(start) == "HTTP/" { // Envoy takes it for a bad request
			response, err = http.ReadResponse(r, nil)
			return response, false, err
		}
		got, err := r.ReadString('\n')
		return nil, got == hello, err
	}
	req, err := request(c)
	if err != nil {
		return nil, false, err
	}
	if err := req.Write(conn); err != nil {
		return nil, false, err
	}
	response, err = http.ReadResponse(bufio.NewReader(conn), req)
	return response, false, err
}

// request returns the request of a call.
func request(c simulate.Call) (*http.Request, error) {
	r := &http.Request{Method: c.Method, Host: c.Host, URL: &url.URL{Scheme: "http", Opaque: c.Path}, Header: http.Header{}}
	if strings.HasPrefix(c.Path, "//") { // as opaque text it would begin with a host
		path, query, _ := strings.Cut(c.Path, "?")
		plain, err := url.PathUnescape(path)
		if err != nil {
			return nil, err
		}
		r.URL = &url.URL{Scheme: "http", Path: plain, RawPath: path, RawQuery: query}
	}
	for name, lines := range c.Headers {
		r.Header[http.CanonicalHeaderKey(name)] = lines
	}
	if c.Token != nil {
		token, err := sign(c.Token)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r, nil
}

// sign returns a token: one that ends in an hour if its claims do not say, signed with the
// key of all issuers in stories, or with another one.
func sign(t *simulate.Token) (string, error) {
	by := "stories"
	if t.Invalid {
		by = "a stranger"
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: signingKey(by)}, (&jose.SignerOptions{}).WithHeader("kid", "stories"))
	if err != nil {
		return "", err
	}
	claims := map[string]any{"exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, t.Claims)
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// signingKey returns a key that is always the same, because stories have its public part.
func signingKey(of string) crypto.Signer {
	seed := sha256.Sum256([]byte(of))
	return ed25519.NewKeyFromSeed(seed[:])
}
