package inspect

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

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// The certificates that Gateways name have the state that their proxies make of them. A
// Gateway that names a Secret of another namespace does not get it.
func TestPrintGatewayCerts(t *testing.T) {
	now := at.Add(time.Hour)
	secretOf := func(name string, begins, lasts time.Duration, public bool) meshtest.Change {
		cert, key := serverPair(t, at.Add(begins), at.Add(begins+lasts))
		ref, err := credential.Reference(credential.Source{Namespace: "edge", Name: name, Data: map[string][]byte{"tls.crt": cert, "tls.key": key}},
			credential.Options{Key: []byte("hmac"), Public: public})
		if err != nil {
			t.Fatal(err)
		}
		return meshtest.Object("Secret", "edge", name, ref)
	}
	other, _ := serverPair(t, at, at.Add(100*time.Hour))
	_, key := serverPair(t, at, at.Add(100*time.Hour))
	mismatched, err := credential.Reference(credential.Source{Namespace: "edge", Name: "mismatch", Data: map[string][]byte{"tls.crt": other, "tls.key": key}},
		credential.Options{Key: []byte("hmac"), Public: true})
	if err != nil {
		t.Fatal(err)
	}
	server := func(host, name string, mode networking.ServerTLSSettings_TLSmode) *networking.Server {
		return &networking.Server{Hosts: []string{host}, Tls: &networking.ServerTLSSettings{Mode: mode, CredentialName: name}}
	}
	const simple = networking.ServerTLSSettings_SIMPLE
	changes := []meshtest.Change{
		secretOf("valid", 0, 100*time.Hour, true), secretOf("soon", -100*time.Hour, 102*time.Hour, true), secretOf("ended", -2*time.Hour, time.Hour, true),
		secretOf("future", 2*time.Hour, time.Hour, true), secretOf("hidden", 0, 100*time.Hour, false), secretOf("unused", 0, time.Hour, true),
		meshtest.Object("Secret", "edge", "mismatch", mismatched),
		meshtest.Object("Gateway", "edge", "one", &networking.Gateway{Servers: []*networking.Server{
			server("a.example", "valid", simple), server("b.example", "kubernetes://soon", simple), server("c.example", "edge/ended", simple),
			server("d.example", "future", simple), server("e.example", "mismatch", simple), server("f.example", "hidden", simple),
			server("g.example", "gone", simple), server("mesh.example", "valid", networking.ServerTLSSettings_ISTIO_MUTUAL), {Hosts: []string{"plain.example"}},
		}}),
		meshtest.Object("Gateway", "edge", "two", &networking.Gateway{Servers: []*networking.Server{server("z.example", "valid", simple)}}),
		meshtest.Object("Gateway", "shop", "foreign", &networking.Gateway{Servers: []*networking.Server{server("h.example", "edge/valid", simple)}}),
	}
	w, _, err := world.NewWorld().Apply(meshtest.Rows(changes...))
	if err != nil {
		t.Fatal(err)
	}
	operatetest.Golden(t, "certs-gateways", func(o *command.Output) {
		views := viewGatewayCerts(w, now)
		o.Print(views, func() { showGatewayCerts(views, now, o) })
	})
}

func serverPair(t *testing.T, begins, ends time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test CA"}, DNSNames: []string{"shop.example"}, NotBefore: begins, NotAfter: ends,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
