package securemesh_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/suite/envoytest"
)

// CA-13, S33, S34: what Envoy's SPIFFE validator takes and refuses. The domain of the first
// URI decides which roots count, a leaf without keyUsage is refused, and a bundle can have
// revocation lists.
func TestSPIFFEValidator(t *testing.T) {
	one, two, other := certtest.NewCA("one"), certtest.NewCA("two"), certtest.NewCA("other")
	const a, b, far = "spiffe://one/ns/a/sa/a", "spiffe://two/ns/b/sa/b", "spiffe://other/ns/c/sa/c"
	revoked := one.Peer("revoked", a)
	list := string(one.RevocationList(time.Now().Add(time.Hour), revoked))
	change := func(f func(*x509.Certificate)) certtest.Pair { return one.ForgedPeer("x", f, a) }
	dir := t.TempDir()
	plain, listed := filepath.Join(dir, "plain"), filepath.Join(dir, "listed")
	envoytest.Run(t, dir, []*listenerv3.Listener{
		validating(t, plain, map[string]string{"one": string(one.PEM()), "two": string(two.PEM())}),
		validating(t, listed, map[string]string{"one": string(one.PEM()) + list, "two": string(two.PEM())}),
	})
	for _, c := range []struct {
		name          string
		pair          certtest.Pair
		plain, listed bool
	}{
		{"of the first domain", one.Peer("x", a), true, true},
		{"of the second domain", two.Peer("x", b), true, true},
		{"of the second domain, by the first root", one.Peer("x", b), false, false},
		{"of a domain without roots", one.Peer("x", far), false, false},
		{"by another root", other.Peer("x", a), false, false},
		{"the first URI is of the root's domain", one.Peer("x", a, b), true, true},
		{"the second URI is of the root's domain", one.Peer("x", b, a), false, false},
		{"no URI", one.Peer("x"), false, false},
		{"no key usage", change(func(c *x509.Certificate) { c.KeyUsage = 0 }), false, false},
		{"may sign certificates", change(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), false, false},
		{"CA bit", change(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }), false, false},
		{"ended", change(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), false, false},
		{"revoked", revoked, true, false},
	} {
		for socket, want := range map[string]bool{plain: c.plain, listed: c.listed} {
			if err := answered(socket, c.pair); (err == nil) != want {
				t.Errorf("%s at %s: %v; want it to pass: %v", c.name, filepath.Base(socket), err, want)
			}
		}
	}
}

// validating returns a listener on a unix socket that answers clients which the SPIFFE
// validator accepts by these bundles.
func validating(t *testing.T, socket string, bundles map[string]string) *listenerv3.Listener {
	config := &tlsv3.SPIFFECertValidatorConfig{}
	for domain, pem := range bundles {
		config.TrustDomains = append(config.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{Name: domain, TrustBundle: inlined(pem)})
	}
	server := certtest.NewCA("server").Peer("server")
	return &listenerv3.Listener{
		Name:    filepath.Base(socket),
		Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}},
		FilterChains: []*listenerv3.FilterChain{{
			TransportSocket: &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, &tlsv3.DownstreamTlsContext{
				RequireClientCertificate: wrapperspb.Bool(true),
				CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inlined(string(server.Cert)), PrivateKey: inlined(string(server.Key))}},
					ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
						CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: "envoy.tls.cert_validator.spiffe", TypedConfig: packed(t, config)},
					}},
				},
			})}},
			Filters: []*listenerv3.Filter{{Name: "echo", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, &echov3.Echo{})}}},
		}},
	}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	must(t, err)
	return a
}

func inlined(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

// answered reports why a server on a unix socket does not answer a client with a certificate.
func answered(socket string, pair certtest.Pair) error {
	raw, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, InsecureSkipVerify: true}) //nolint:gosec // the client is under test
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err = io.WriteString(c, "hello"); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 5))
	return err
}
