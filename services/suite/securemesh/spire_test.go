//go:build spire

package securemesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/ca"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/services/suite/envoytest"
)

// ofSPIRE are added to documents: the trust domain is SPIRE's.
const ofSPIRE = `
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {trustDomain: example.org}
`

// onlyWeb lets only the identity of web call cart.
const onlyWeb = `
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: cart}
spec: {action: ALLOW, rules: [{from: [{source: {principals: [example.org/ns/web/sa/web]}}]}]}
`

// svidTTL is how long certificates of SPIRE last here: they are renewed at half of it.
const svidTTL = 30 * time.Second

// spire is a SPIRE server with an agent.
type spire struct {
	*testing.T
	dir           string // short, because of the sockets in it
	server, agent string // the programs
	serving       *program.Process
	attesting     *program.Process
	configured    *strings.Replacer // of the files of deploy/spire to what they are here
}

func newSPIRE(t *testing.T) *spire {
	t.Helper()
	s := &spire{T: t}
	var err [3]error
	s.dir, err[0] = os.MkdirTemp("", "spire") //nolint:usetesting // sockets have short names
	s.server, err[1] = program.Tool(t.Context(), "spire-server")
	s.agent, err[2] = program.Tool(t.Context(), "spire-agent")
	must(t, err[:]...)
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	s.configured = strings.NewReplacer(
		`"8081"`, fmt.Sprintf("%q", fmt.Sprint(port(t))), "/run/spire", s.dir, "/var/lib/spire", s.dir, filepath.Dir(defaultSocket), s.dir,
		`default_x509_svid_ttl = "1h"`, fmt.Sprintf("default_x509_svid_ttl = %q", svidTTL),
		`log_level = "INFO"`, `log_level = "WARN"`,
	)
	must(t, os.MkdirAll(filepath.Join(s.dir, "server"), 0o700), os.MkdirAll(filepath.Join(s.dir, "agent"), 0o700))
	s.serving = s.start("server", s.server, "run", "-config", s.file("deploy/spire/server.conf"))
	s.until(s.serving, func(ctx context.Context) error {
		return exec.CommandContext(ctx, s.server, "healthcheck", "-socketPath", s.at("server.sock")).Run()
	})
	certtest.WriteFile(t, s.dir, "bundle.pem", []byte(s.say("bundle", "show")))
	token := strings.TrimSpace(strings.TrimPrefix(s.say("token", "generate", "-spiffeID", "spiffe://example.org/node"), "Token:"))
	s.attest("-joinToken", token)
	return s
}

// defaultSocket is the agent's in the files of deploy.
const defaultSocket = "/run/secrets/workload-spiffe-uds/socket"

func (s *spire) at(name string) string { return filepath.Join(s.dir, name) }

// file writes a file of the tree as it is here.
func (s *spire) file(name string) string {
	s.Helper()
	root, err := program.Root()
	must(s.T, err)
	content, err := os.ReadFile(filepath.Join(root, name))
	must(s.T, err)
	return certtest.WriteFile(s.T, s.dir, filepath.Base(name), []byte(s.configured.Replace(string(content))))
}

func (s *spire) start(name string, argv ...string) *program.Process {
	s.Helper()
	p, err := program.Start(name, s.dir, argv)
	must(s.T, err)
	s.Cleanup(func() {
		p.Kill()
		if s.Failed() {
			s.Logf("%s:\n%s", name, p.Tail(30))
		}
	})
	return p
}

func (s *spire) until(p *program.Process, ready func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	must(s.T, p.UntilAlive(ctx, p.Name+" is ready", ready))
}

// attest starts the agent.
func (s *spire) attest(args ...string) {
	s.Helper()
	s.attesting = s.start("agent", append([]string{s.agent, "run", "-config", s.file("deploy/spire/agent.conf")}, args...)...)
	s.until(s.attesting, func(ctx context.Context) error {
		return exec.CommandContext(ctx, s.agent, "healthcheck", "-socketPath", s.at("socket")).Run()
	})
}

// say asks the server by its command line.
func (s *spire) say(args ...string) string {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), s.server, append(args, "-socketPath", s.at("server.sock"))...).CombinedOutput()
	if err != nil {
		s.Fatalf("spire-server %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// workload links a program to a path of its own, and gives what runs from there the
// identity of an account that is named like its namespace.
func (s *spire) workload(name, of string) string {
	s.Helper()
	path := s.at(name)
	if err := os.Link(of, path); err != nil { // it is on another file system
		content, err := os.ReadFile(of)
		must(s.T, err, os.WriteFile(path, content, 0o700)) //nolint:gosec // a program
	}
	account, _, _ := strings.Cut(name, ".")
	s.say("entry", "create", "-parentID", "spiffe://example.org/node", "-spiffeID", fmt.Sprintf("spiffe://example.org/ns/%s/sa/%[1]s", account), "-selector", "unix:path:"+path)
	return path
}

// certificate fetches a certificate with a program of workload, as a client of another kind than Envoy.
func (s *spire) certificate(path string) tls.Certificate {
	s.Helper()
	to, ctx := s.TempDir(), s.Context()
	var pair tls.Certificate
	s.until(s.attesting, func(context.Context) error { // the agent hears of entries every five seconds
		out, err := exec.CommandContext(ctx, path, "api", "fetch", "x509", "-socketPath", s.at("socket"), "-write", to).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		pair, err = tls.LoadX509KeyPair(filepath.Join(to, "svid.0.pem"), filepath.Join(to, "svid.0.key"))
		return err
	})
	return pair
}

// spireMesh is a mesh whose certificates are SPIRE's.
type spireMesh struct {
	*mesh
	spire   *spire
	plain   string // where the frontend serves without TLS
	backend int    // of cart
	url     string // of cart, at the sidecar of web
}

// newSPIREMesh runs `meshlog up` and beside it a ca that has only the roots of SPIRE.
func newSPIREMesh(t *testing.T) *spireMesh {
	service, backend := port(t), port(t)
	m := &spireMesh{mesh: &mesh{T: t, dir: t.TempDir(), config: t.TempDir()}, spire: newSPIRE(t), backend: backend}
	m.data, m.url = filepath.Join(m.dir, "data"), "http://"+at("127.0.0.1", service)
	certtest.WriteFile(t, m.config, "mesh.yaml", []byte(fmt.Sprintf(documents, service, backend)+ofSPIRE))
	servers := certtest.NewCA("servers")
	m.servers = certtest.WriteFile(t, m.dir, "servers.pem", servers.PEM())
	s := up.DefaultSettings()
	s.Config, s.Data, s.BusWatchers = m.config, m.data, []string{ca.Shard.String()}
	m.plain = at("127.0.0.1", port(t))
	s.Frontend.Listen, s.Frontend.TLSListen, s.Frontend.MeshClients = m.plain, "127.0.0.1:0", true
	s.Frontend.TLS.Cert, s.Frontend.TLS.Key = servers.Server("xds", time.Now().Add(time.Hour)).Write(t, m.dir, "xds")
	must(t, s.Check())
	lines, _ := m.run(func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, s) })
	m.xds = lines.Wait(t, "up", "xds-tls")
	lines.Wait(t, "serving", "version")

	roots, at := ca.DefaultSettings(), process.DefaultBus()
	roots.Signer, roots.TrustBundle, roots.TrustDomain = "none", m.spire.at("bundle.pem"), "example.org"
	at.URL, at.ID = filepath.Join(m.data, bus.FileName), "roots"
	must(t, roots.Check(), at.Check())
	lines, _ = m.run(func(ctx context.Context, p *process.Process) error {
		return roots.Run(ctx, ca.Options{Domain: at.Domain, ID: at.ID, Connect: at.Connect(bus.Watcher(ca.Shard), p), Process: p})
	})
	lines.Wait(t, "publishing the roots of an authority elsewhere", "roots")
	return m
}

// envoy runs a workload's Envoy with the bootstrap of deploy/envoy, from a path of its own.
// change is what replaces more of the file.
func (m *spireMesh) envoy(path, name, ip string, change func(string) string) {
	m.Helper()
	root, err := program.Root()
	must(m.T, err)
	content, err := os.ReadFile(filepath.Join(root, "deploy/envoy/spire.yaml"))
	must(m.T, err)
	_, xds, err := net.SplitHostPort(m.xds)
	must(m.T, err)
	if change == nil {
		change = func(text string) string { return text }
	}
	text := strings.NewReplacer(
		"127.0.0.2~cart-1.cart~cart.", fmt.Sprintf("%s~%s-1.%[2]s~%[2]s.", ip, name), "cluster: cart", "cluster: "+name, "NAMESPACE: cart", "NAMESPACE: "+name,
		"{app: cart}", "{app: "+name+"}", "INSTANCE_IPS: 127.0.0.2", "INSTANCE_IPS: "+ip, "port_value: 15000", fmt.Sprint("port_value: ", port(m)),
		"port_value: 15012", "port_value: "+xds, "/etc/meshlog/frontends.pem", m.servers, defaultSocket, m.spire.at("socket"),
	).Replace(change(string(content)))
	m.spire.start("envoy-"+name, path, "-c", certtest.WriteFile(m.T, m.dir, name+".yaml", []byte(text)),
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--drain-time-s", "2")
}

// direct returns a client that calls cart's sidecar itself, with a certificate.
func direct(pair tls.Certificate) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"istio-http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // who is called is not what is tested
	}}}
}

// certificate returns the certificate that a workload's sidecar shows.
func (m *spireMesh) certificate() (*x509.Certificate, error) {
	var got *x509.Certificate
	c, err := tls.Dial("tcp", at("127.0.0.3", m.backend), &tls.Config{
		NextProtos: []string{"istio"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // it is only looked at
		VerifyConnection:   func(s tls.ConnectionState) error { got = s.PeerCertificates[0]; return nil },
	})
	if err == nil {
		_ = c.Close()
	}
	if got == nil {
		return nil, fmt.Errorf("no certificate: %w", err)
	}
	return got, nil
}

// T-6, CA-12, CA-3: two Envoys with the bootstrap of deploy/envoy get their certificates and
// ROOTCA from a real SPIRE agent, with the settings of deploy/spire, and connect to a
// frontend that knows the roots from a ca without a key. They call each other in mutual
// TLS; a policy decides by the identities of SPIRE; a certificate of another CA is refused.
// Under load certificates are renewed, and the agent is killed, comes back and goes on
// renewing: no request fails.
func TestSPIRE(t *testing.T) {
	m := newSPIREMesh(t)
	envoy := envoytest.Envoy(t)
	cart, web := m.spire.workload("cart", envoy), m.spire.workload("web", envoy)
	byWeb, byOther := m.spire.workload("web.fetch", m.spire.agent), m.spire.workload("other", m.spire.agent)
	serveCart(t, m.backend)
	m.envoy(cart, "cart", "127.0.0.3", nil)
	m.envoy(web, "web", "127.0.0.2", nil)
	m.until("a request in mutual TLS", time.Minute, func() error { return get(m.url, "cart.mesh") })
	if err := get("http://"+at("127.0.0.3", m.backend), "cart.mesh"); err == nil {
		t.Error("a port that is STRICT answers plaintext")
	}
	if said := m.meshlog("proxy-status", "-o", "json"); !strings.Contains(said, "spiffe://example.org/ns/cart/sa/cart") {
		t.Errorf("the frontend does not know the identity of cart:\n%s", said)
	}
	m.identities(byWeb, byOther)

	sent, before := m.load(m.url, "cart.mesh"), map[string]bool{}
	renewed := func(what string, times int) {
		t.Helper()
		m.until(what, time.Duration(times+1)*svidTTL, func() error {
			c, err := m.certificate()
			if err != nil {
				return err
			}
			before[c.SerialNumber.String()] = true
			if len(before) <= times {
				return fmt.Errorf("%d certificates until now", len(before))
			}
			return nil
		})
	}
	renewed("two renewals", 2)
	m.spire.attesting.Kill()
	died, last := time.Now(), len(before)
	m.until("a third of the time without the agent", time.Minute, func() error {
		if time.Since(died) < svidTTL/3 {
			return errors.New("not yet")
		}
		return nil
	})
	m.spire.attest() // without a join token
	renewed("renewals after the agent has come back", last+2)
	t.Logf("%d requests, none failed; %d certificates of cart; the agent was dead for %s", sent(), len(before), svidTTL/3)
}

// identities shows who may call cart, first without a policy and then with one.
func (m *spireMesh) identities(byWeb, byOther string) {
	m.Helper()
	url := "https://" + at("127.0.0.3", m.backend)
	call := func(pair tls.Certificate) error { return getBy(direct(pair), url, "cart.mesh") }
	stranger := certtest.NewCA("the CA before").Peer("x", "spiffe://example.org/ns/web/sa/web").TLS()
	refused := func(when string) {
		m.Helper()
		if err := call(stranger); err == nil || !strings.Contains(err.Error(), "tls: ") {
			m.Errorf("%s, a certificate of another CA: %v", when, err)
		}
	}
	must(m.T, call(m.spire.certificate(byWeb)), call(m.spire.certificate(byOther)))
	refused("without a policy")
	certtest.WriteFile(m.T, m.config, "policy.yaml", []byte(onlyWeb))
	m.until("the policy", time.Minute, func() error {
		if err := call(m.spire.certificate(byOther)); err == nil || !strings.Contains(err.Error(), "403") {
			return fmt.Errorf("the other identity: %w", err)
		}
		return nil
	})
	must(m.T, call(m.spire.certificate(byWeb)), get(m.url, "cart.mesh"))
	refused("with a policy")
}

// CA-12, S24: the socket of SPIRE is missing. A listener that needs no certificate waits
// with one that does, and with a cluster that does: for 5 s in all, and then it answers.
func TestMissingSPIRE(t *testing.T) {
	m := newSPIREMesh(t)
	backend, service := port(t), port(t)
	serve(t, backend, func(http.ResponseWriter, *http.Request) {})
	certtest.WriteFile(t, m.config, "plain.yaml", fmt.Appendf(nil, plain, service, backend))
	m.until("the service", time.Minute, func() error {
		if !strings.Contains(m.meshlog("log", "-n", "100"), "ServiceEntry plain/plain") {
			return errors.New("not on the log")
		}
		return nil
	})
	_, without, err := net.SplitHostPort(m.plain)
	must(t, err)
	began := time.Now()
	m.envoy(envoytest.Envoy(t), "cart", "127.0.0.3", func(text string) string {
		// It reaches the frontend without TLS: with TLS it would wait for its certificate.
		text, _, found := strings.Cut(text, "      transport_socket:")
		if !found {
			t.Fatal("the bootstrap has no transport socket at its end")
		}
		return strings.NewReplacer("port_value: 15012", "port_value: "+without, defaultSocket, m.spire.at("missing")).Replace(text)
	})
	m.until("a listener", time.Minute, func() error { return get("http://"+at("127.0.0.1", service), "plain.mesh") })
	took := time.Since(began)
	if took < 5*time.Second || took > 8*time.Second {
		t.Errorf("the listener answers after %s, want 5 s and the start of Envoy", took)
	}
	t.Logf("the listener answers after %s", took)
}

const plain = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: plain, namespace: plain}
spec:
  hosts: [plain.mesh]
  addresses: [10.99.0.2]
  resolution: STATIC
  ports: [{number: %[1]d, name: http, protocol: HTTP, targetPort: %[2]d}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[2]d}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mutual, namespace: plain}
spec:
  hosts: [mutual.mesh]
  addresses: [10.99.0.3]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[1]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.4}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mutual, namespace: plain}
spec: {host: mutual.mesh, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
`
