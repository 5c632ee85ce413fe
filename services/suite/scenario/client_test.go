package scenario

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/simulate"
)

// clients sends the requests of calls as their callers would: from their address, with
// their certificate and their token.
type clients struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newClients returns clients with a certificate authority of their own.
func newClients(t testing.TB) *clients {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &clients{root, key}
}

// certify returns a certificate with an identity, and its key.
func (cs *clients) certify(identity string) (der []byte, key *ecdsa.PrivateKey, err error) {
	uri, err := url.Parse(identity)
	if err != nil {
		return nil, nil, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, cs.root, key.Public(), cs.key)
	return der, key, err
}

// server returns the socket of a listener that decrypts, and accepts the certificates of
// the clients. As at listeners of the mesh, no session is resumed.
func (cs *clients) server(t testing.TB) *corev3.TransportSocket {
	t.Helper()
	der, key, err := cs.certify("spiffe://cluster.local/ns/test/sa/server")
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})}}
	}
	config, err := anypb.New(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: block("CERTIFICATE", der), PrivateKey: block("PRIVATE KEY", private)}},
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
				ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: block("CERTIFICATE", cs.root.Raw)},
			},
		},
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
}

// client returns the client of a call.
func (cs *clients) client(c simulate.Call) (*http.Client, error) {
	dialer := &net.Dialer{}
	if c.From.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: c.From.AsSlice()}
	}
	config := &tls.Config{InsecureSkipVerify: true, ServerName: c.ServerName} //nolint:gosec // the listener is ours
	if c.Identity != "" {
		der, key, err := cs.certify(c.Identity)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
	return &http.Client{
		Transport:     &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// request returns the request of a call, without the address to which it goes.
func (*clients) request(c simulate.Call) (*http.Request, error) {
	r := &http.Request{Method: c.Method, Host: c.Host, URL: &url.URL{Scheme: "http", Opaque: c.Path}, Header: http.Header{}}
	if strings.HasPrefix(c.Path, "//") { // as opaque text it would begin with a host
		path, query, _ := strings.Cut(c.Path, "?")
		plain, err := url.PathUnescape(path)
		if err != nil {
			return nil, err
		}
		r.URL = &url.URL{Scheme: "http", Path: plain, RawPath: path, RawQuery: query}
	}
	if c.TLS {
		r.URL.Scheme = "https"
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
