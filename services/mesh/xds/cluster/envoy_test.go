package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"golang.org/x/tools/txtar"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

// A real Envoy accepts the output of all rows, for sidecars and for routers.
func TestEnvoyTakesRows(t *testing.T) {
	files := newCertificates(t)
	for name, router := range map[string]bool{"sidecar": false, "router": true} {
		t.Run(name, func(t *testing.T) {
			config := envoytest.Config{Clusters: fixedClusters()}
			for _, path := range archives(t) {
				a, err := txtar.ParseFile(path)
				if err != nil {
					t.Fatal(err)
				}
				m := readRow(t, a).maker(router)
				for _, p := range m.clusters() {
					c := p.Message.(*clusterv3.Cluster)
					c.Name += " of " + filepath.Base(path)
					files.use(t, c.GetTransportSocket())
					config.Clusters = append(config.Clusters, c)
				}
				for _, p := range m.assignments() {
					l := p.Message.(*endpointv3.ClusterLoadAssignment)
					l.ClusterName += " of " + filepath.Base(path)
					config.Endpoints = append(config.Endpoints, l)
				}
			}
			envoytest.Validate(t, config)
		})
	}
}

func fixedClusters() []*clusterv3.Cluster {
	return []*clusterv3.Cluster{
		fixed{piece.BlackHoleCluster}.cluster(&meshconfig.MeshConfig{}),
		fixed{piece.PassthroughCluster}.cluster(&meshconfig.MeshConfig{}),
	}
}

// certificates is a directory that has a file of each kind that rules name.
type certificates string

func newCertificates(t *testing.T) certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature, SubjectKeyId: []byte{1},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now, NextUpdate: now.Add(time.Hour),
	}, template, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "PRIVATE KEY", Bytes: private}, "crl": {Type: "X509 CRL", Bytes: list},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificates(dir)
}

// use replaces the files that s names by files that exist.
func (d certificates) use(t *testing.T, s *corev3.TransportSocket) {
	t.Helper()
	if s == nil {
		return
	}
	m, err := s.GetTypedConfig().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	switch m := m.(type) {
	case *proxyprotocolv3.ProxyProtocolUpstreamTransport:
		d.use(t, m.GetTransportSocket())
	case *tlsv3.UpstreamTlsContext:
		d.useIn(m.GetCommonTlsContext())
	}
	s.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(m)}
}

func (d certificates) useIn(c *tlsv3.CommonTlsContext) {
	for _, cert := range c.GetTlsCertificates() {
		cert.CertificateChain, cert.PrivateKey = d.file("cert"), d.file("key")
	}
	v := c.GetValidationContext()
	if v.GetTrustedCa() != nil {
		v.TrustedCa = d.file("cert")
	}
	if v.GetCrl() != nil {
		v.Crl = d.file("crl")
	}
}

func (d certificates) file(name string) *corev3.DataSource {
	return file(filepath.Join(string(d), name))
}
