package frontend_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/meshtest"
)

const (
	farDomain   = "two.example"
	farClient   = "spiffe://two.example/ns/client/sa/client"
	farIdentity = "spiffe://two.example/ns/shop/sa/web"
)

// trust publishes the roots of the mesh, and a MeshConfig with those of another domain.
func (p *peers) trust(far ...*certtest.CA) {
	p.Helper()
	p.trustBy(2, far...)
}

func (p *peers) trustBy(proxies int, far ...*certtest.CA) {
	p.Helper()
	var all []string
	for _, ca := range far {
		all = append(all, fmt.Sprintf("{trustDomains: [%s], pem: %q}", farDomain, ca.PEM()))
	}
	p.appliedBy(p.mesh.Publish(append(meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {protocolDetectionTimeout: 0.3s, caCertificates: [%s]}
`, strings.Join(all, ", "))), meshtest.Object("TrustBundle", "", "cluster.local", &registryv1.TrustBundle{
		TrustDomain: "cluster.local",
		Roots:       []*registryv1.Root{{Certificate: string(p.servers.PEM()), State: registryv1.RootState_ROOT_STATE_ACTIVE}},
	}))...), proxies)
}

var decrypting = []string{"http", "tcp", "auto", "auto-tcp"}

// CA-13: workloads of a trust domain that MeshConfig names with its roots call those of the
// mesh, and policies tell the domains apart. New roots of the domain reach Envoys while
// connections stand, and a domain that is removed is refused in the next handshake.
func TestCallersOfAnotherTrustDomain(t *testing.T) {
	two, three := certtest.NewCA("two"), certtest.NewCA("three")
	p := newPeersWith(t, map[string]certtest.Pair{"client": two.Peer("client", farClient)})
	p.mode("STRICT")
	expect := func(what string, may bool, w way) {
		t.Helper()
		for _, port := range decrypting {
			got, err := p.call(w, port)
			if (err == nil) != may {
				t.Errorf("%s: %s to %s: %q, %v; may pass: %v", what, w.name, port, got, err, may)
			}
		}
	}
	own := way{name: "own", outside: true, tls: showing(p.servers.Peer("own", clientIdentity))}
	far := way{name: "far sidecar"}
	expect("no roots", false, far)
	p.trust(two)
	expect("its roots", true, far)
	expect("its roots", true, own)
	if got, err := p.call(far, "http"); !strings.Contains(got, "URI="+farClient) {
		t.Errorf("web is told %q, %v", got, err)
	}
	for _, c := range []struct {
		action, from string
		own, far     bool
	}{
		{"ALLOW", `principals: ["two.example/ns/client/sa/client"]`, false, true},
		{"ALLOW", `principals: ["cluster.local/ns/client/sa/client"]`, true, false},
		{"DENY", `principals: ["two.example/ns/client/sa/client"]`, true, false},
		{"ALLOW", `namespaces: [client]`, true, false},
	} {
		change := p.policy(c.action, c.from)
		p.applied(p.mesh.Publish(change))
		expect(c.action+" "+c.from, c.own, own)
		expect(c.action+" "+c.from, c.far, far)
		p.applied(p.mesh.Publish(change.Gone()))
	}
	stands := p.standing(showing(two.Peer("x", farClient)))
	next := way{name: "next", outside: true, tls: showing(three.Peer("next", farClient))}
	expect("one root", false, next)
	p.trust(two, three)
	expect("two roots", true, next)
	expect("two roots", true, far)
	if err := stands(); err != nil {
		t.Errorf("a connection that stood while a root came: %v", err)
	}
	p.trust()
	expect("removed", false, way{name: "far", outside: true, tls: showing(two.Peer("x", farClient))}) // the sidecar has connections that stand
	expect("removed", false, next)
	expect("removed", true, own)
}

// standing opens a connection to web, and returns what tries whether it stands.
func (p *peers) standing(c *tls.Config) func() error {
	p.Helper()
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.2:%d", p.targets["tcp"]), c)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	r := bufio.NewReader(conn)
	try := func() error {
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			return err
		}
		_, err := r.ReadString('\n')
		return err
	}
	if err := try(); err != nil {
		p.Fatal(err)
	}
	return try
}

// CA-13: a client calls a server of another trust domain that its ServiceEntry names, and
// only the roots of that domain count: those of the mesh cannot stand for it, whatever other
// URIs a certificate has.
func TestServersOfAnotherTrustDomain(t *testing.T) {
	two := certtest.NewCA("two")
	p := newPeersWith(t, map[string]certtest.Pair{"web": two.Peer("web", farIdentity)})
	p.mode("STRICT")
	for _, names := range [][]string{{farIdentity}, {farIdentity, webIdentity}} {
		for _, port := range decrypting {
			p.named("far-"+port, port, names, p.at(port, "labels: {security.istio.io/tlsMode: istio}"))
			p.trust()
			if got := p.outcome(way{}, port); got != closed {
				t.Errorf("%s of %v without its roots: %s", port, names, got)
			}
			p.trust(two)
			if got := p.outcome(way{}, port); got != as && got != arrives {
				t.Errorf("%s of %v: %s", port, names, got)
			}
			if came, way := p.followsTo(port, farIdentity); !came {
				t.Errorf("the simulated call to %s of %v does not arrive:\n%s", port, names, way)
			}
		}
		for _, c := range []struct {
			name string
			pair certtest.Pair
			ok   bool
		}{
			{"the server", two.Peer("x", farIdentity), true},
			{"by the mesh's root", p.servers.Peer("x", farIdentity), false},
			{"by the mesh's root, behind a URI of the mesh", p.servers.Peer("x", evilIdentity, farIdentity), false},
			{"by the mesh's root, before a URI of the mesh", p.servers.Peer("x", farIdentity, evilIdentity), false},
		} {
			server := p.encrypts(c.pair)
			p.named("impostor", "tcp", names, fmt.Sprintf("{address: 127.0.0.1, ports: {tcp: %d}, labels: {security.istio.io/tlsMode: istio}}", server))
			if len(names) > 1 && c.name == "by the mesh's root, behind a URI of the mesh" {
				continue // the mesh's root may sign webIdentity itself, which the client expects too
			}
			if got := p.outcome(way{}, "tcp"); (got != closed) != c.ok {
				t.Errorf("a server of %v with a certificate %s: %s", names, c.name, got)
			}
		}
	}
}

// named publishes a ServiceEntry as entry does, with the names of its servers.
func (p *peers) named(name, port string, names []string, endpoint string) {
	p.Helper()
	number := freePort(p.T)
	p.applied(p.mesh.Publish(meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec:
  hosts: [%[1]s.example]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: [client]
  subjectAltNames: [%s]
  ports: [{number: %d, name: %s, protocol: %q}]
  endpoints: [%s]
`, name, `"`+strings.Join(names, `", "`)+`"`, number, port, peerPorts[port].protocol, endpoint))...))
	p.listens[port], p.host = number, name+".example"
}

// encrypts runs a server that decrypts connections with a certificate and echoes them.
func (p *peers) encrypts(pair certtest.Pair) int {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"istio"}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// CA-13, S27, S34: no chain takes a certificate with URIs of two trust domains, whichever root
// signed it, nor one of a root with a URI of the other domain: sidecars for requests and
// connections, and servers of mode ISTIO_MUTUAL at routers. The simulation says the same.
func TestAttackTwoTrustDomains(t *testing.T) {
	two := certtest.NewCA("two")
	p := newPeers(t)
	gate := p.gate()
	p.trustBy(3, two)
	for _, mode := range []string{"STRICT", "PERMISSIVE"} {
		p.appliedBy(p.mesh.Publish(meshtest.YAML(t, fmt.Sprintf(
			"{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: shop}, spec: {mtls: {mode: %s}}}", mode))...), 3)
		simulated := p.mesh.simulated(t, p.nodes["web"])
		for _, c := range []struct {
			name          string
			by            *certtest.CA
			uris          []string
			ok, untrusted bool
		}{
			{"of the mesh", p.servers, []string{evilIdentity}, true, false},
			{"of the other domain", two, []string{farClient}, true, false},
			{"two URIs of the mesh", p.servers, []string{evilIdentity, clientIdentity}, true, false},
			{"mesh's root, both", p.servers, []string{evilIdentity, farClient}, false, false},
			{"mesh's root, both, the other first", p.servers, []string{farClient, evilIdentity}, false, true},
			{"mesh's root, the other only", p.servers, []string{farClient}, false, true},
			{"other root, both", two, []string{farClient, clientIdentity}, false, false},
			{"other root, both, the mesh first", two, []string{clientIdentity, farClient}, false, true},
			{"other root, the mesh only", two, []string{clientIdentity}, false, true},
			{"other root, a third", two, []string{"spiffe://three.example/ns/a/sa/a"}, false, true},
			{"other root, a third first", two, []string{"spiffe://three.example/ns/a/sa/a", farClient}, false, false},
		} {
			pair := c.by.Peer("x", c.uris...)
			for _, port := range decrypting {
				got, err := p.call(way{outside: true, tls: showing(pair)}, port)
				if (err == nil) != c.ok {
					t.Errorf("%s: %s to %s: %q, %v; want it to pass: %v", mode, c.name, port, got, err, c.ok)
				}
				if o := simulated.Call(p.shown(pair, c.untrusted, port)); o.Unknown != "" || (!o.Refused && !o.Closed) != c.ok {
					t.Errorf("%s: simulated %s to %s, want it to pass: %v\n%s", mode, c.name, port, c.ok, strings.Join(o.Lines(), "\n"))
				}
			}
			for _, requests := range []bool{true, false} {
				if err := gate(pair, requests); (err == nil) != c.ok {
					t.Errorf("%s to a router's server, requests %v: %v; want it to pass: %v", c.name, requests, err, c.ok)
				}
			}
		}
	}
}

// gate adds a router with two servers of mode ISTIO_MUTUAL, for requests and for connections,
// and returns what calls them.
func (p *peers) gate() func(pair certtest.Pair, requests bool) error {
	p.Helper()
	of := map[bool]int{true: freePort(p.T), false: freePort(p.T)}
	v := p.mesh.Publish(meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gate, namespace: edge}
spec:
  selector: {app: gate}
  servers:
  - {port: {number: %d, name: requests, protocol: HTTPS}, hosts: [gate.example], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: %d, name: connections, protocol: TLS}, hosts: [gate.example], tls: {mode: ISTIO_MUTUAL}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: gate, namespace: edge}
spec:
  hosts: [gate.example]
  gateways: [edge/gate]
  http: [{route: [{destination: {host: gated.example, port: {number: 80}}}]}]
  tcp: [{route: [{destination: {host: gated.example, port: {number: 81}}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: gated, namespace: edge}
spec:
  hosts: [gated.example]
  resolution: STATIC
  exportTo: ["."]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d, tcp: %d}}]
`, of[true], of[false], p.targets["http"], p.targets["tcp"]))...)
	cert, key := p.servers.Peer("gate", "spiffe://cluster.local/ns/edge/sa/gate").Write(p.T, p.dir, "gate")
	node := fmt.Sprintf("{id: router~127.0.0.4~gate-1.edge~edge.svc.cluster.local, cluster: gate, metadata: {INSTANCE_IPS: 127.0.0.4, LABELS: {app: gate}, TLS_SERVER_CERT_CHAIN: %s, TLS_SERVER_KEY: %s, TLS_SERVER_ROOT_CERT: %s/roots.pem}}", cert, key, p.dir)
	runEnvoy(p.T, strings.Replace(fmt.Sprintf(staticClusters, "DELTA_GRPC", "  cds_config: {ads: {}, resource_api_version: V3}\n", p.xds), "{id: static, cluster: static}", node, 1))
	p.appliedBy(v, 3)
	return func(pair certtest.Pair, requests bool) error {
		c := showing(pair)
		c.ServerName, c.NextProtos = "gate.example", []string{"http/1.1"}
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", of[requests]), c)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: gate.example\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && requests && !slices.Contains(strings.Fields(line), fmt.Sprint(http.StatusOK)) {
			err = fmt.Errorf("the answer is %q", line)
		}
		return err
	}
}
