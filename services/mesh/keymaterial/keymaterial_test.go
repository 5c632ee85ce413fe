package keymaterial

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// material is a key with everything that is public about it.
type material struct {
	secret map[string][]byte // DER, by form
	public map[string][]byte
}

func newMaterial(t testing.TB, key crypto.Signer) material {
	t.Helper()
	must := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	m := material{secret: map[string][]byte{}, public: map[string][]byte{}}
	m.secret["in PKCS#8"] = must(x509.MarshalPKCS8PrivateKey(key))
	switch k := key.(type) {
	case *rsa.PrivateKey:
		m.secret["in PKCS#1"] = x509.MarshalPKCS1PrivateKey(k)
		m.public["PKCS#1"] = x509.MarshalPKCS1PublicKey(&k.PublicKey)
	case *ecdsa.PrivateKey:
		m.secret["in SEC 1"] = must(x509.MarshalECPrivateKey(k))
	}
	m.public["PKIX"] = must(x509.MarshalPKIXPublicKey(key.Public()))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a", Organization: []string{"b"}}, NotAfter: time.Unix(4e9, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign, DNSNames: []string{"a.example"},
	}
	m.public["certificate"] = must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	m.public["CSR"] = must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: template.Subject, DNSNames: template.DNSNames}, key))
	ca, err := x509.ParseCertificate(m.public["certificate"])
	if err != nil {
		t.Fatal(err)
	}
	m.public["CRL"] = must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), NextUpdate: time.Unix(4e9, 0),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(5), RevocationTime: time.Unix(1, 0)}},
	}, ca, key))
	return m
}

func materials(t testing.TB) map[string]material {
	t.Helper()
	all := map[string]material{}
	rsaKey, err1 := rsa.GenerateKey(rand.Reader, 2048)
	_, edKey, err2 := ed25519.GenerateKey(rand.Reader)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	all["RSA"], all["Ed25519"] = newMaterial(t, rsaKey), newMaterial(t, edKey)
	for _, c := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		all[c.Params().Name] = newMaterial(t, k)
	}
	return all
}

// wrappings are ways in which a field may hold bytes.
func wrappings(der []byte, pemType string) map[string][]byte {
	text := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	std := base64.StdEncoding.EncodeToString
	lines := func(s, end string) []byte {
		var b strings.Builder
		for ; len(s) > 64; s = s[64:] {
			b.WriteString(s[:64] + end)
		}
		return []byte(b.String() + s)
	}
	return map[string][]byte{
		"DER":                         der,
		"DER among others":            bytes.Join([][]byte{[]byte("0123"), der, []byte("4567")}, nil),
		"PEM":                         text,
		"PEM behind a text":           append([]byte("# a comment\n"), text...),
		"base64 of DER":               []byte(std(der)),
		"base64 of DER, in JSON":      []byte(`{"data":{"key":"` + std(der) + `"}}`),
		"base64url of DER":            []byte(base64.RawURLEncoding.EncodeToString(der)),
		"base64 of DER in lines":      lines(std(der), "\n  "),
		"base64 of DER in JSON lines": lines(std(der), `\r\n`),
		"base64 of PEM":               []byte(std(text)),
		"base64 of PEM in lines":      lines(std(text), "\n"),
		"base64 of PEM, shifted":      []byte("ab" + std(text)),
		"base64 of base64 of PEM":     []byte(std([]byte(std(text)))),
		"base64 of base64 of DER":     []byte(std([]byte(std(der)))),
	}
}

// TestIn finds private keys in each form and wrapping, and no others: what is public
// about the same keys is no alarm (BUS-8).
func TestIn(t *testing.T) {
	for algorithm, m := range materials(t) {
		for form, der := range m.secret {
			for wrapping, b := range wrappings(der, "PRIVATE KEY") {
				if In(b) == "" {
					t.Errorf("%s key %s, %s: not found", algorithm, form, wrapping)
				}
			}
			if got := In(der); got != form {
				t.Errorf("%s key %s: found %q", algorithm, form, got)
			}
		}
		for form, der := range m.public {
			for wrapping, b := range wrappings(der, strings.ToUpper(form)) {
				if what := In(b); what != "" {
					t.Errorf("%s %s, %s: false alarm: %q", algorithm, form, wrapping, what)
				}
			}
		}
	}
}

// TestContainers finds keys in the two containers that crypto/x509 does not write: RFC
// 5958's EncryptedPrivateKeyInfo and RFC 7292's PFX. A bundle of certificates is none.
func TestContainers(t *testing.T) {
	marshal := func(v any) []byte {
		t.Helper()
		b, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	type algorithm struct {
		ID         asn1.ObjectIdentifier
		Parameters []int
	}
	type contentInfo struct {
		Type    asn1.ObjectIdentifier
		Content []byte `asn1:"explicit,tag:0"`
	}
	data := contentInfo{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}, bytes.Repeat([]byte{7}, 300)}
	for want, der := range map[string][]byte{
		"in encrypted PKCS#8": marshal(struct {
			Algorithm algorithm
			Data      []byte
		}{algorithm{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}, []int{2048, 5}}, bytes.Repeat([]byte{7}, 300)}),
		"in PKCS#12": marshal(struct {
			Version  int
			AuthSafe contentInfo
		}{3, data}),
		"": marshal(data),
	} {
		if got := In(der); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
		if got := In([]byte(base64.StdEncoding.EncodeToString(der))); (got != "") != (want != "") {
			t.Errorf("%q in base64: found %q", want, got)
		}
	}
}

func value(t testing.TB, m proto.Message) ident.Value {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return ident.Value{Type: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Bytes: b}
}

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cluster is a raw Resource with a TLS certificate (its Any is in an Any).
func cluster(t testing.TB, c *tlsv3.TlsCertificate) *configv1.Resource {
	return &configv1.Resource{Resource: pack(t, &clusterv3.Cluster{
		Name: "c",
		TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{{Name: "m", TransportSocket: &corev3.TransportSocket{
			Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, &tlsv3.UpstreamTlsContext{
				CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{c}},
			})},
		}}},
	})}
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

// TestFind names the field of a key, and finds the inline keys of a certificate in any
// encoding (BUS-8).
func TestFind(t *testing.T) {
	m := materials(t)["P-256"]
	key, cert := m.secret["in PKCS#8"], m.public["certificate"]
	text := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}))
	const at = "resource.transport_socket_matches[0].transport_socket.typed_config.common_tls_context.tls_certificates[0]"
	for name, test := range map[string]struct {
		v    ident.Value
		want Found
	}{
		"base64 of PEM":       {value(t, cluster(t, &tlsv3.TlsCertificate{PrivateKey: inline([]byte(text))})), Found{at + ".private_key.inline_bytes", "inline"}},
		"no key at all":       {value(t, cluster(t, &tlsv3.TlsCertificate{PrivateKey: inline([]byte("engine:1"))})), Found{at + ".private_key.inline_bytes", "inline"}},
		"PKCS#12":             {value(t, cluster(t, &tlsv3.TlsCertificate{Pkcs12: inline([]byte("x"))})), Found{at + ".pkcs12.inline_bytes", "in PKCS#12"}},
		"in the chain":        {value(t, cluster(t, &tlsv3.TlsCertificate{CertificateChain: inline(key)})), Found{at + ".certificate_chain.inline_bytes", "in PKCS#8"}},
		"in a map":            {value(t, &registryv1.Workload{Labels: map[string]string{"a": text}}), Found{"labels.a", "in PEM, in base64"}},
		"as the key of a map": {value(t, &registryv1.Workload{Labels: map[string]string{text: "a"}}), Found{"labels", "in PEM, in base64"}},
		"in JSON":             {value(t, &registryv1.Object{Json: []byte(`{"data":{"a":"` + text + `"}}`)}), Found{"json", "in PEM, in base64"}},
		"of an unknown type":  {ident.Value{Type: "type.googleapis.com/of.a.Newer", Bytes: key}, Found{"", "in PKCS#8"}},
		"unreadable":          {ident.Value{Type: "type.googleapis.com/meshlog.config.v1.Resource", Bytes: append([]byte{0xff}, key...)}, Found{"", "in PKCS#8"}},
		"a file":              {value(t, cluster(t, &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "/key.pem"}}, CertificateChain: inline(cert)})), Found{}},
		"a certificate":       {value(t, cluster(t, &tlsv3.TlsCertificate{CertificateChain: inline(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))})), Found{}},
		"nothing":             {ident.Value{}, Found{}},
	} {
		got, ok := Find(test.v)
		if got != test.want || ok != (test.want != Found{}) {
			t.Errorf("%s: %+v, %t; want %+v", name, got, ok, test.want)
		}
	}
}

// FuzzIn checks that no bytes make In panic.
func FuzzIn(f *testing.F) {
	for _, m := range materials(f) {
		for _, der := range m.secret {
			f.Add(der)
			f.Add([]byte(base64.StdEncoding.EncodeToString(der)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		In(b)
		Find(ident.Value{Type: "type.googleapis.com/meshlog.config.v1.Resource", Bytes: b})
	})
}

// BenchmarkFind searches payloads without keys: of a service, a resource with a
// certificate, and a large text.
func BenchmarkFind(b *testing.B) {
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: materials(b)["RSA"].public["certificate"]})
	for name, m := range map[string]proto.Message{
		"labels of 1 KB":   &registryv1.Workload{Labels: map[string]string{"a": strings.Repeat("some-service.namespace.svc.cluster.local ", 25)}},
		"certificate":      cluster(b, &tlsv3.TlsCertificate{CertificateChain: inline(chain)}),
		"JSON of 256 KB":   &registryv1.Object{Json: []byte(strings.Repeat(`{"name":"some-service","port":8080},`, 7300))},
		"base64 of 256 KB": &registryv1.Object{Json: bytes.Repeat([]byte("QUJD"), 64<<10)},
	} {
		v := value(b, m)
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			b.SetBytes(int64(len(v.Bytes)))
			for b.Loop() {
				if f, ok := Find(v); ok {
					b.Fatal(f)
				}
			}
		})
	}
}
