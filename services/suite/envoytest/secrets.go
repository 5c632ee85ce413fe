package envoytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// Credentials are what all secrets of an Envoy have, in PEM.
type Credentials struct{ Chain, Key, CAs string }

// InlineSecrets makes b ask for static secrets where it would ask for some by SDS, and
// adds these.
func InlineSecrets(t testing.TB, b *bootstrapv3.Bootstrap, with Credentials) {
	s := secrets{TB: t, seen: map[string]bool{}, with: with}
	for _, c := range b.GetStaticResources().GetClusters() {
		s.socket(c.GetTransportSocket())
		for _, m := range c.GetTransportSocketMatches() {
			s.socket(m.GetTransportSocket())
		}
	}
	for _, l := range b.GetStaticResources().GetListeners() {
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			s.socket(chain.GetTransportSocket())
		}
	}
	b.GetStaticResources().Secrets = s.all
}

type secrets struct {
	testing.TB
	all  []*tlsv3.Secret
	seen map[string]bool
	with Credentials
}

func (s *secrets) socket(socket *corev3.TransportSocket) {
	if socket.GetTypedConfig() == nil {
		return
	}
	m, err := socket.GetTypedConfig().UnmarshalNew()
	if err != nil {
		s.Fatal(err)
	}
	switch m := m.(type) {
	case *tlsv3.UpstreamTlsContext:
		s.context(m.GetCommonTlsContext())
	case *tlsv3.DownstreamTlsContext:
		s.context(m.GetCommonTlsContext())
	case *proxyprotocolv3.ProxyProtocolUpstreamTransport:
		s.socket(m.GetTransportSocket())
	}
	socket.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: packed(s, m)}
}

func (s *secrets) context(c *tlsv3.CommonTlsContext) {
	for _, ref := range c.GetTlsCertificateSdsSecretConfigs() {
		s.add(ref, func(out *tlsv3.Secret) {
			out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(s.with.Chain), PrivateKey: inline(s.with.Key)}}
		})
	}
	for _, ref := range []*tlsv3.SdsSecretConfig{c.GetValidationContextSdsSecretConfig(), c.GetCombinedValidationContext().GetValidationContextSdsSecretConfig()} {
		s.add(ref, func(out *tlsv3.Secret) {
			out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(s.with.CAs)}}
		})
	}
}

func (s *secrets) add(ref *tlsv3.SdsSecretConfig, fill func(*tlsv3.Secret)) {
	if ref.GetSdsConfig() == nil {
		return
	}
	ref.SdsConfig = nil
	if s.seen[ref.GetName()] {
		return
	}
	s.seen[ref.GetName()] = true
	out := &tlsv3.Secret{Name: ref.GetName()}
	fill(out)
	s.all = append(s.all, out)
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func selfSigned(t testing.TB) Credentials {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "envoytest"}, DNSNames: []string{"example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "envoytest"}, SerialNumber: big.NewInt(1)}, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return Credentials{Chain: cert, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})), CAs: cert}
}
