package frontend_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

// peers is a mesh of two workloads: web behind a sidecar at 127.0.0.2, which itself listens
// on 127.0.0.1, and a client beside a sidecar at 127.0.0.3. Nothing redirects connections.
type peers struct {
	*testing.T
	mesh    *mesh
	rig     *rig
	servers *certtest.CA   // of the mesh
	dir     string         // of roots.pem, by which both sidecars verify
	listens map[string]int // where clients call each port of web, on 127.0.0.1
	targets map[string]int // the same port at 127.0.0.2 and, of web itself, at 127.0.0.1
	host    string         // of the requests of clients
	ports   string         // of web's ServiceEntry, and of its endpoint
	target  string
	xds     int               // where the frontend listens
	nodes   map[string]string // of the sidecars, in YAML
}

// The ports of web: their protocols as the service names them, and what web speaks there.
var peerPorts = map[string]struct{ protocol, speaks string }{
	"http":       {"HTTP", "http"},
	"http2":      {"HTTP2", "http"},
	"tcp":        {"TCP", "echo"},
	"first":      {"TCP", "greeting"},
	"auto":       {"", "http"},
	"auto-tcp":   {"", "echo"},
	"auto-first": {"", "greeting"},
	"auto-tls":   {"", "tls"},
}

const webIdentity, clientIdentity = "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/client/sa/client"

func newPeers(t *testing.T) *peers { return newPeersWith(t, nil) }

// newPeersWith is newPeers with the certificates of some workloads.
func newPeersWith(t *testing.T, pairs map[string]certtest.Pair) *peers {
	t.Helper()
	return newPeersBy(t, pairs, ", TLS_SERVER_ROOT_CERT: %s")
}

// newPeersBy is newPeersWith with the metadata that names the file of the roots; empty: the
// sidecars get them from the frontend.
func newPeersBy(t *testing.T, pairs map[string]certtest.Pair, metadata string) *peers {
	t.Helper()
	p := &peers{T: t, mesh: newMesh(t), host: "web.example", servers: certtest.NewCA("mesh"), listens: map[string]int{}, targets: map[string]int{}, nodes: map[string]string{}}
	dir := t.TempDir()
	p.dir = dir
	roots := certtest.WriteFile(t, dir, "roots.pem", p.servers.PEM())
	var ports, targets []string
	for name, port := range peerPorts {
		p.listens[name], p.targets[name] = freePort(t), freePort(t)
		ports = append(ports, fmt.Sprintf("{number: %d, name: %s, protocol: %q}", p.listens[name], name, port.protocol))
		targets = append(targets, fmt.Sprintf("%s: %d", name, p.targets[name]))
		p.serve(name, port.speaks)
	}
	xds := freePort(t)
	p.ports, p.target, p.xds = strings.Join(ports, ", "), strings.Join(targets, ", "), xds
	v := p.mesh.Publish(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {protocolDetectionTimeout: 0.3s}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: [client]
  ports: [%s]
  endpoints: [{address: 127.0.0.2, serviceAccount: web, ports: {%s}}]
`, p.ports, p.target))...)
	p.rig = start(t, "one", p.mesh, onPort(t, xds))
	for _, w := range []struct{ name, namespace, ip, identity string }{
		{"web", "shop", "127.0.0.2", webIdentity}, {"client", "client", "127.0.0.3", clientIdentity},
	} {
		pair, given := pairs[w.name]
		if !given {
			pair = p.servers.Peer(w.name, w.identity)
		}
		cert, key := pair.Write(t, dir, w.name)
		p.nodes[w.name] = fmt.Sprintf(
			"{id: sidecar~%s~%s-1.%s~%[3]s.svc.cluster.local, cluster: %[2]s, metadata: {INTERCEPTION_MODE: NONE, INSTANCE_IPS: %[1]s, LABELS: {app: %[2]s}, TLS_SERVER_CERT_CHAIN: %[4]s, TLS_SERVER_KEY: %[5]s%[6]s}}",
			w.ip, w.name, w.namespace, cert, key, strings.ReplaceAll(metadata, "%s", roots))
		runEnvoy(t, strings.Replace(fmt.Sprintf(staticClusters, "DELTA_GRPC", "  cds_config: {ads: {}, resource_api_version: V3}\n", xds), "{id: static, cluster: static}", p.nodes[w.name], 1))
	}
	p.applied(v)
	return p
}

// applied waits until both sidecars have a version.
func (p *peers) applied(v any) {
	p.Helper()
	p.appliedBy(v, 2)
}

func (p *peers) appliedBy(v any, proxies int) {
	p.Helper()
	p.rig.eventually("the ACKs of all proxies", func(r *reportv1.FrontendReport) bool {
		if len(r.GetProxies()) != proxies || len(r.GetApplied()) != 1 || int(r.GetApplied()[0].GetStreams()) != proxies {
			return false
		}
		return store.VersionOf(r.GetApplied()[0].GetVersion()) == v
	})
}

// mode sets the mode of web's ports.
func (p *peers) mode(mode string) {
	p.Helper()
	p.applied(p.mesh.Publish(meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: %s}}
`, mode))...))
}

// serve serves a port of web itself.
func (p *peers) serve(name, speaks string) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.targets[name]))
	if err != nil {
		p.Fatal(err)
	}
	if speaks == "tls" {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certtest.NewCA("application").Server("web", time.Now().Add(time.Hour)).TLS()}, MinVersion: tls.VersionTLS12})
	}
	if speaks == "http" {
		s := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s by %q", r.Proto, r.Header.Get("x-forwarded-client-cert")) // the client looks at it
		})}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		go func() { _ = s.Serve(l) }() // Close ends it
		p.Cleanup(func() { _ = s.Close() })
		return
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			go func() {
				defer func() { _ = c.Close() }()
				if speaks == "greeting" {
					_, _ = io.WriteString(c, "hello\n") // the client looks at it
				}
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	p.Cleanup(func() { _ = l.Close() })
}

// A way is how somebody calls a port.
type way struct {
	name    string
	outside bool        // not through the client's sidecar, but at web's address
	tls     *tls.Config // nil: none of its own
	h2      bool
	token   string // of the request; empty: none
}

// call calls a port and returns what came, or an error.
func (p *peers) call(w way, port string) (string, error) {
	address := fmt.Sprintf("127.0.0.1:%d", p.listens[port])
	if w.outside {
		address = fmt.Sprintf("127.0.0.2:%d", p.targets[port])
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil || w.tls == nil {
			return c, err
		}
		secure := tls.Client(c, w.tls)
		return secure, errors.Join(secure.HandshakeContext(ctx))
	}
	ctx, cancel := context.WithTimeout(p.Context(), 20*time.Second)
	defer cancel()
	if peerPorts[port].speaks == "http" {
		return p.request(ctx, w, dial, port)
	}
	c, err := dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	if peerPorts[port].speaks == "greeting" {
		return r.ReadString('\n')
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	return r.ReadString('\n')
}

func (p *peers) request(ctx context.Context, w way, dial func(context.Context) (net.Conn, error), port string) (string, error) {
	t := &http.Transport{
		Protocols:      new(http.Protocols),
		DialContext:    func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	defer t.CloseIdleConnections()
	t.Protocols.SetHTTP1(!w.h2)
	t.Protocols.SetUnencryptedHTTP2(w.h2)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/", p.host, p.listens[port]), nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/forged/sa/forged")
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// outcomes of a call.
const (
	closed  = "closed"
	plain   = "plain"     // it arrives; web's sidecar knows nobody
	as      = "as client" // it arrives, and the client has proved who it is
	arrives = "arrives"   // no request, so nobody says who called
)

func (p *peers) outcome(w way, port string) string {
	got, err := p.call(w, port)
	switch {
	case err != nil:
		return closed
	case peerPorts[port].speaks != "http":
		if got != "hello\n" {
			return fmt.Sprintf("%q", got)
		}
		return arrives
	case strings.Contains(got, "forged"):
		return got
	case strings.Contains(got, clientIdentity):
		return as
	}
	return plain
}

// T-1: what reaches a workload, by the mode of its port, the protocol of the port, and what
// the caller speaks (MTLS-1 to MTLS-4, MTLS-7 to MTLS-10, MTLS-13, DR-19, PA-4), with two real
// Envoys that a frontend serves. S30: with other ALPN names requests get 503.
func TestModes(t *testing.T) {
	identity := func(ca *certtest.CA, uris ...string) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{ca.Peer("x", uris...).TLS()}, NextProtos: []string{"istio"}, MinVersion: tls.VersionTLS12,
			InsecureSkipVerify: true, //nolint:gosec // the server's identity is not what is tried here
		}
	}
	other := certtest.NewCA("other")
	strangers := func(of *certtest.CA) []way {
		return []way{
			{name: "no certificate", outside: true, tls: &tls.Config{NextProtos: []string{"istio"}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}, //nolint:gosec // as above
			{name: "of another CA", outside: true, tls: identity(other, clientIdentity)},
			{name: "of another trust domain", outside: true, tls: identity(of, "spiffe://other.example/ns/client/sa/client")},
			{name: "without an identity", outside: true, tls: identity(of)},
		}
	}
	meshes := []way{{name: "sidecar"}, {name: "sidecar, h2", h2: true}}
	plainly := []way{{name: "plain", outside: true}, {name: "plain, h2", outside: true, h2: true}}
	foreign := way{name: "foreign TLS", outside: true, tls: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}} //nolint:gosec // as above
	for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
		t.Run(mode, func(t *testing.T) {
			p := newPeers(t)
			p.mode(mode)
			expect := func(want string, w way, ports ...string) {
				t.Helper()
				for _, port := range ports {
					if got := p.outcome(w, port); got != want {
						t.Errorf("%s to %s: %s, want %s", w.name, port, got, want)
					}
				}
			}
			known, unknown, raw := as, plain, arrives
			switch mode {
			case "DISABLE":
				known = plain
			case "STRICT":
				unknown, raw = closed, closed
			}
			for _, w := range meshes {
				expect(known, w, "http", "auto")
			}
			expect(known, meshes[1], "http2")
			for _, port := range []string{"http", "auto", "tcp", "auto-tcp"} {
				arrives, way := p.follows(port)
				if secure := strings.Contains(way, clientIdentity); !arrives || secure != (mode != "DISABLE") {
					t.Errorf("the simulated call to %s arrives: %v\n%s", port, arrives, way)
				}
			}
			expect(arrives, meshes[0], "tcp", "first", "auto-tcp", "auto-first")
			for _, w := range plainly {
				expect(unknown, w, "http", "auto")
			}
			expect(raw, plainly[0], "tcp", "first", "auto-tcp", "auto-first")
			expect(raw, foreign, "auto-tls")
			for _, w := range strangers(p.servers) {
				expect(closed, w, "http", "tcp", "auto", "auto-tcp")
			}
		})
	}
}

// MTLS-9, S29: on a PERMISSIVE port a plain caller that says nothing hears a server that speaks
// first when the listener has waited for protocolDetectionTimeout. STRICT closes it then.
func TestSilentCaller(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second
	p := newPeers(t)
	p.applied(p.mesh.Publish(meshtest.YAML(t, `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {protocolDetectionTimeout: 2s}
`)...))
	for mode, want := range map[string]string{"PERMISSIVE": arrives, "STRICT": closed} {
		p.mode(mode)
		for _, port := range []string{"first", "auto-first"} {
			began := time.Now()
			got := p.outcome(way{outside: true}, port)
			if took := time.Since(began); got != want || took.Round(10*time.Millisecond) < wait || took > 3*wait {
				t.Errorf("%s to %s: %s after %s, want %s after %s", mode, port, got, took, want, wait)
			}
		}
	}
}

// T-1: while a port goes from PERMISSIVE to STRICT and back, no call of a client of the mesh
// fails, on new connections to its sidecar and on those that stand.
func TestModesUnderLoad(t *testing.T) {
	p := newPeers(t)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var calls atomic.Int64
	for _, port := range []string{"http", "auto", "tcp", "auto-tcp"} {
		all.Go(func() {
			for ctx.Err() == nil {
				if got := p.outcome(way{}, port); got != as && got != arrives {
					t.Errorf("a call of %s is %s", port, got)
				}
				calls.Add(1)
			}
		})
	}
	for range 5 {
		for _, mode := range []string{"STRICT", "PERMISSIVE"} {
			p.mode(mode)
			for before := calls.Load(); calls.Load() < before+100 && !t.Failed(); runtime.Gosched() {
			}
		}
	}
	stop()
	all.Wait()
	t.Logf("%d calls", calls.Load())
}

// POL-4: policies of a workload decide by what a caller has proved, again and again on new
// connections (S44), about requests and about connections. The simulation from client to
// server says the same (POL-16).
func TestIdentitiesDecide(t *testing.T) {
	p := newPeers(t)
	outside := way{name: "plain", outside: true}
	policy := func(action, from string) meshtest.Change {
		return meshtest.YAML(t, fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {action: %s, rules: [{from: [{source: {%s}}]}]}
`, action, from))[0]
	}
	for _, test := range []struct {
		action, from    string
		client, unknown bool // what may pass
	}{
		{"ALLOW", `principals: ["cluster.local/ns/client/sa/client"]`, true, false},
		{"ALLOW", `namespaces: [client]`, true, false},
		{"ALLOW", `principals: ["cluster.local/ns/client/sa/other"]`, false, false},
		{"ALLOW", `principals: ["*"]`, true, false},
		{"ALLOW", `notPrincipals: ["cluster.local/ns/client/sa/client"]`, false, true},
		{"DENY", `principals: ["*"]`, false, true},
		{"DENY", `notPrincipals: ["*"]`, true, false},
	} {
		p.applied(p.mesh.Publish(policy(test.action, test.from)))
		for _, port := range []string{"http", "auto", "tcp", "auto-tcp"} {
			for range 5 {
				for _, c := range []struct {
					by  way
					may bool
				}{{way{}, test.client}, {outside, test.unknown}} {
					if got := p.outcome(c.by, port); (got != closed) != c.may {
						t.Errorf("%s %s: %s to %s: %s, may pass: %v", test.action, test.from, c.by.name, port, got, c.may)
					}
				}
			}
			if arrives, way := p.follows(port); arrives != test.client {
				t.Errorf("%s %s: the simulated call to %s arrives: %v, want %v\n%s", test.action, test.from, port, arrives, test.client, way)
			}
		}
	}
}
