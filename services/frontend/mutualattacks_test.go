package frontend_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/simulate/rbac"
)

const evilIdentity = "spiffe://cluster.local/ns/evil/sa/evil"

// showing returns the TLS settings of a client that calls web with a certificate.
func showing(pair certtest.Pair) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"istio"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the client is an attacker
	}
}

// policy returns the AuthorizationPolicy of web about the callers of a source.
func (p *peers) policy(action, from string) meshtest.Change {
	p.Helper()
	return meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {action: %s, rules: [{from: [{source: {%s}}]}]}
`, action, from))[0]
}

// An attacker has a certificate of another form than the mesh's CA signs. It opens no
// port as the client whose name is in it, and gets past no DENY of its own identity
// (MTLS-6, POL-4, POL-5, S27), and the simulation says the same (POL-16). The first two rows
// are the same calls without an attack.
func TestAttackPeerCertificates(t *testing.T) {
	p := newPeers(t)
	forged := func(change func(*x509.Certificate), uris ...string) certtest.Pair {
		return p.servers.ForgedPeer("x", change, uris...)
	}
	ends := func(after time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(after) }
	}
	type certificate struct {
		name string
		pair certtest.Pair
		// passes says what web takes: without a policy, with ALLOW of the client's
		// identity, with DENY of the evil one.
		passes [3]bool
		// untrusted: web's CAs do not stand for the certificate.
		untrusted bool
	}
	all := []certificate{
		{"the client", forged(nil, clientIdentity), [3]bool{true, true, true}, false},
		{"evil", forged(nil, evilIdentity), [3]bool{true, false, false}, false},
		{"DNS = id", forged(func(c *x509.Certificate) { c.DNSNames = []string{clientIdentity} }, evilIdentity), [3]bool{true, false, false}, false},
		{"CN = id", forged(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: clientIdentity} }, evilIdentity), [3]bool{true, false, false}, false},
		{"DNS = id, no URI", forged(func(c *x509.Certificate) { c.DNSNames = []string{clientIdentity} }), [3]bool{}, false},
		{"CN = id, no URI", forged(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: clientIdentity} }), [3]bool{}, false},
		{"id in a longer path", forged(nil, "spiffe://cluster.local/ns/evil/sa/x/ns/client/sa/client"), [3]bool{true, false, true}, false},
		{"other trust domain", forged(nil, "spiffe://other.example/ns/client/sa/client"), [3]bool{}, false},
		{"a trust domain that begins alike", forged(nil, "spiffe://cluster.local.evil/ns/client/sa/client"), [3]bool{}, false},
		{"ended", forged(ends(-time.Minute), clientIdentity), [3]bool{}, true},
		{"of tomorrow", forged(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }, clientIdentity), [3]bool{}, true},
		{"a server's only", forged(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, clientIdentity), [3]bool{}, true},
		{"of another CA", certtest.NewCA("mesh").Peer("x", clientIdentity), [3]bool{}, true},
		{"two URIs", forged(nil, evilIdentity, clientIdentity), [3]bool{true, true, false}, false},
		{"CA bit", forged(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, evilIdentity), [3]bool{true, false, false}, false},
		{"no key usage", forged(func(c *x509.Certificate) { c.KeyUsage = 0 }, evilIdentity), [3]bool{true, false, false}, false},
	}
	allow, deny := p.policy("ALLOW", `principals: ["cluster.local/ns/client/sa/client"]`), p.policy("DENY", `principals: ["cluster.local/ns/evil/sa/evil"]`)
	for _, mode := range []string{"STRICT", "PERMISSIVE"} {
		p.mode(mode)
		for i, change := range []meshtest.Change{allow.Gone(), allow, deny} {
			p.applied(p.mesh.Publish(change))
			simulated := p.mesh.simulated(t, p.nodes["web"])
			for _, c := range all {
				for _, port := range []string{"http", "tcp", "auto", "auto-tcp"} {
					got, err := p.call(way{outside: true, tls: showing(c.pair)}, port)
					if (err == nil) != c.passes[i] {
						t.Errorf("%s, policy %d: %s to %s: %q, %v; want it to pass: %v", mode, i, c.name, port, got, err, c.passes[i])
					}
					if o := simulated.Call(p.shown(c.pair, c.untrusted, port)); o.Unknown != "" || (!o.Refused && !o.Closed) != c.passes[i] {
						t.Errorf("%s, policy %d: simulated %s to %s, want it to pass: %v\n%s", mode, i, c.name, port, c.passes[i], strings.Join(o.Lines(), "\n"))
					}
					if strings.Contains(got, clientIdentity) && c.name != "the client" && c.name != "two URIs" || strings.Contains(got, "DNS=") || strings.Contains(got, "Subject=") {
						t.Errorf("%s to %s: web is told other names than the URI of the client (MTLS-10): %s", c.name, port, got)
					}
				}
			}
		}
	}
}

// shown returns the call for a port of web by a client that shows a certificate.
func (p *peers) shown(pair certtest.Pair, untrusted bool, port string) simulate.Call {
	p.Helper()
	leaf, err := x509.ParseCertificate(pair.TLS().Certificate[0])
	if err != nil {
		p.Fatal(err)
	}
	c := simulate.Call{
		Inbound: true, Address: netip.MustParseAddr("127.0.0.2"), Port: uint32(p.targets[port]), From: netip.MustParseAddr("127.0.0.1"),
		TLS: true, ALPN: []string{"istio"}, Untrusted: untrusted,
		Certificate: &rbac.Certificate{DNSNames: leaf.DNSNames, Subject: leaf.Subject.String()},
	}
	for _, uri := range leaf.URIs {
		c.Certificate.URIs = append(c.Certificate.URIs, uri.String())
	}
	if c.TCP = peerPorts[port].speaks != "http"; !c.TCP {
		c.Method, c.Host, c.Path, c.Headers = "GET", p.host, "/", map[string][]string{}
	}
	return c
}

// resuming returns a way with tickets, and how many of its connections have resumed a
// session.
func resuming(version uint16, pair certtest.Pair) (way, *atomic.Int64) {
	n, c := new(atomic.Int64), showing(pair)
	c.MaxVersion, c.ClientSessionCache = version, tls.NewLRUClientSessionCache(100)
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if s.DidResume {
			n.Add(1)
		}
		return nil
	}
	return way{name: tls.VersionName(version), outside: true, tls: c}, n
}

// A client that offers tickets resumes no session at a workload: with one, Envoy would not
// know the client (S44), so an ALLOW would refuse it, a DENY let it pass, and the root that
// it is under could be gone (MTLS-6, S11). The same client resumes at a server of Go.
func TestAttackResumption(t *testing.T) {
	p := newPeers(t)
	p.mode("STRICT")
	ports := []string{"http", "tcp", "auto", "auto-tcp"}
	var ways []way
	var resumed []*atomic.Int64
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		w, n := resuming(version, p.servers.Peer("x", clientIdentity))
		direct := w.tls.Clone()
		direct.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		direct.NextProtos = nil
		for range 2 {
			if err := p.greet(direct); err != nil {
				t.Fatal(err)
			}
		}
		if n.Load() != 1 {
			t.Fatalf("%s: the client resumed %d sessions at a server of Go, want 1", w.name, n.Load())
		}
		n.Store(0)
		ways, resumed = append(ways, w), append(resumed, n)
	}
	expect := func(what string, passes bool) {
		t.Helper()
		for i, w := range ways {
			for _, port := range ports {
				for range 5 {
					if got, err := p.call(w, port); (err == nil) != passes {
						t.Errorf("%s: %s to %s: %q, %v; want it to pass: %v", what, w.name, port, got, err, passes)
					}
				}
			}
			if n := resumed[i].Load(); n > 0 {
				t.Errorf("%s: %s resumed %d sessions", what, w.name, n)
			}
		}
	}
	expect("without a policy", true)
	deny, allow := p.policy("DENY", `principals: ["cluster.local/ns/client/sa/client"]`), p.policy("ALLOW", `principals: ["cluster.local/ns/client/sa/client"]`)
	p.applied(p.mesh.Publish(deny))
	expect("DENY", false)
	p.applied(p.mesh.Publish(allow))
	expect("ALLOW", true)

	next := certtest.NewCA("next")
	certtest.WriteFile(t, p.dir, "roots.pem", next.PEM())
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := program.Until(ctx, "the other root", func(context.Context) error {
		_, err := p.call(way{outside: true, tls: showing(next.Peer("x", clientIdentity))}, "http")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	expect("after the root is gone", false)
}

// greet says hello to web's own TLS port, without a sidecar.
func (p *peers) greet(c *tls.Config) error {
	ctx, cancel := context.WithTimeout(p.Context(), waitLimit)
	defer cancel()
	conn, err := (&tls.Dialer{Config: c, NetDialer: new(net.Dialer)}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", p.targets["auto-tls"]))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is read
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 6)) // a ticket of TLS 1.3 comes before
	return err
}
