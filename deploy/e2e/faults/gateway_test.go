package faults

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/testport"
)

// standing is the host of the requests that run all the time.
const standing = "standing"

// gateway is a mesh of separate processes whose routers decrypt HTTPS for some hosts, each
// with a certificate of its own, and requests through one of the routers.
type gateway struct {
	*rig.Mesh
	ctx          context.Context // of the step
	certificates string          // the directory
	sealed       bool
	ca           *certtest.CA
	files        rig.TLS        // of the routers
	ports        map[string]int // by router
	hosts        []string
	versions     map[string]int // of the certificates that were saved last, by host
	canaries     [][]byte       // parts of all private keys that were saved
	envoy        *rig.Envoy     // the router with the load
	load         []*rig.Load
	dialed       atomic.Int64 // connections of the load that stand
}

// loadConns is how many connections of the load stand.
const loadConns = 2

// gatewayParts says what a gateway is made of.
type gatewayParts struct {
	twins  int
	sealed bool // the frontend has a seal key
}

// startGateway starts everything, and waits until requests flow.
func startGateway(t *testing.T, p gatewayParts) *gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir, inputs := t.TempDir(), t.TempDir()
	g := &gateway{
		ctx: ctx, certificates: filepath.Join(inputs, "certificates"), sealed: p.sealed, ca: certtest.NewCA("edge"),
		ports: map[string]int{"warm": 0, "cold": 0}, versions: map[string]int{},
	}
	for _, point := range allPoints(t) {
		if ofKey(point) {
			g.hosts = append(g.hosts, strings.ReplaceAll(point, ".", "-"))
		}
	}
	g.hosts = append(g.hosts, standing)
	g.save(t, standing)
	config := g.configure(t, inputs)

	nats, err := rig.StartNATS(ctx, dir)
	must(t, err)
	ca, err := rig.NewCA(t.TempDir(), "mesh")
	must(t, err)
	serves, err := ca.Sign("frontend", "")
	must(t, err)
	g.files, err = ca.Sign("edge", "spiffe://cluster.local/ns/default/sa/edge")
	must(t, err)
	secret := certtest.WriteFile(t, inputs, "secret.key", []byte("the key of the HMACs of this test, 32 bytes and more\n"))
	exchange := func(name string) []string {
		return []string{"--secret-key-file", secret, "--key-exchange", filepath.Join(nats.Auth, name+".xk")}
	}
	parts := rig.Parts{
		NATS: nats, Builders: 1, Frontends: 1, Twins: p.twins, Folder: withStops, TLS: &serves,
		OfWatchers:  append(exchange("watcher-file-default"), "--certificates", g.certificates),
		OfFrontends: exchange("frontend"),
	}
	if p.sealed {
		parts.OfFrontends = append(parts.OfFrontends, "--seal-key-file", certtest.WriteFile(t, inputs, "seal.key", []byte("0123456789abcdef0123456789abcdef")))
	}
	g.Mesh, err = rig.Assemble(ctx, dir, config, parts)
	must(t, err)
	t.Cleanup(g.End)
	t.Cleanup(func() { g.explain(t) })
	router := g.proxy(t, "warm")
	g.envoy = router.Envoy
	g.serves(t, standing, 1)
	g.start(t)
	return g
}

// configure writes the directory of documents.
func (g *gateway) configure(t *testing.T, dir string) string {
	t.Helper()
	backend, err := rig.StartBackend("backend")
	must(t, err)
	t.Cleanup(backend.Stop)
	config, err := rig.NewConfigDir(dir)
	must(t, err)
	var text strings.Builder
	for router := range g.ports {
		g.ports[router], err = testport.TCP()
		must(t, err)
		fmt.Fprintf(&text, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: default}
spec:
  selector: {app: %[1]s}
  servers:
`, router)
		for _, host := range g.hosts {
			fmt.Fprintf(&text, "    - {port: {number: %d, name: %[2]s, protocol: HTTPS}, bind: 127.0.0.1, hosts: [%[2]s.test], tls: {mode: SIMPLE, credentialName: %[2]s}}\n", g.ports[router], host)
		}
		text.WriteString("---\n")
	}
	fmt.Fprintf(&text, `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: default}
spec:
  hosts: ["*"]
  gateways: [warm, cold]
  http: [{route: [{destination: {host: backend.internal}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend, namespace: default}
spec:
  hosts: [backend.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
`, backend.Port)
	_, err = config.Save("edge.yaml", text.String())
	must(t, err)
	return config.Path
}

// save replaces the certificate of a host, as one, by a new one whose name says which it is.
func (g *gateway) save(t *testing.T, host string) {
	t.Helper()
	g.versions[host]++
	pair := g.ca.Server(nameOf(host, g.versions[host]), time.Now().Add(24*time.Hour))
	block, _ := pem.Decode(pair.Key)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	must(t, err)
	number, err := key.(*ecdsa.PrivateKey).Bytes()
	must(t, err)
	again := base64.StdEncoding.EncodeToString(pair.Key)
	// The number is in any DER; the line is in PEM and in base64 of the DER; the last is
	// from the middle of PEM in base64, as in a Secret.
	g.canaries = append(g.canaries, number, []byte(strings.Split(string(pair.Key), "\n")[2]), []byte(again[len(again)/2:len(again)/2+60]))

	dir := filepath.Join(g.certificates, "default", host)
	version := fmt.Sprintf("..v%d", g.versions[host])
	must(t, os.MkdirAll(filepath.Join(dir, version), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, version, "tls.crt"), pair.Cert, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, version, "tls.key"), pair.Key, 0o600))
	must(t, os.Symlink(version, filepath.Join(dir, "..next")))
	must(t, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
}

func nameOf(host string, version int) string { return fmt.Sprintf("%s v%d", host, version) }

// router is an Envoy and the port on which it accepts HTTPS.
type router struct {
	*rig.Envoy
	port int
}

// proxy starts the Envoy of a router.
func (g *gateway) proxy(t *testing.T, name string) router {
	t.Helper()
	e, err := g.Envoy(g.ctx, rig.EnvoyConfig{
		Node: name, TLS: &g.files,
		Overlay: fmt.Sprintf("node: {id: %[1]s, cluster: demo, metadata: {LABELS: {app: %[1]s}}}", name),
	})
	must(t, err)
	t.Cleanup(e.Kill)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Last output of %s:\n%s", e.Name, e.Tail(8))
		}
	})
	must(t, e.Ready(g.ctx))
	must(t, e.Listening(g.ctx, g.ports[name]))
	return router{e, g.ports[name]}
}

// start starts the requests: those over connections that stand, and one connection after
// the other.
func (g *gateway) start(t *testing.T) {
	t.Helper()
	all, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	stands := g.client(standing, false)
	stands.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		g.dialed.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	comes := g.client(standing, true)
	for client, n := range map[*http.Client]int{stands: loadConns, comes: 1} {
		l, err := rig.StartCalls(all, standing, n, func(ctx context.Context) (string, int, error) {
			_, status, err := get(ctx, client, g.ports["warm"], standing)
			return "backend", status, err
		}, client.CloseIdleConnections)
		must(t, err)
		t.Cleanup(func() { l.Stop() })
		g.load = append(g.load, l)
	}
}

func (g *gateway) client(host string, once bool) *http.Client {
	return &http.Client{Timeout: rig.RequestTimeout, Transport: &http.Transport{
		DisableKeepAlives: once, MaxConnsPerHost: loadConns, MaxIdleConnsPerHost: loadConns,
		TLSClientConfig: &tls.Config{ServerName: host + ".test", InsecureSkipVerify: true}, //nolint:gosec // the name says which certificate it is
	}}
}

// get makes a request to a host, and returns the name of the certificate.
func get(ctx context.Context, client *http.Client, port int, host string) (name string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", port), nil)
	if err != nil {
		return "", 0, err
	}
	req.Host = host + ".test"
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(resp.Body)
	return resp.TLS.PeerCertificates[0].Subject.CommonName, resp.StatusCode, err
}

// call calls a host on a new connection, and returns the name of the certificate.
func (g *gateway) call(ctx context.Context, port int, host string) (string, error) {
	name, status, err := get(ctx, g.client(host, true), port, host)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers with %d", host, status)
	}
	return name, err
}

// serves waits until new connections to a host get a version of its certificate.
func (g *gateway) serves(t *testing.T, host string, version int) {
	t.Helper()
	g.servesBy(t, router{g.envoy, g.ports["warm"]}, host, version)
}

func (g *gateway) servesBy(t *testing.T, r router, host string, version int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(g.ctx, comes)
	defer cancel()
	began := time.Now()
	must(t, r.UntilAlive(ctx, fmt.Sprintf("%s to have %s", r.Name, nameOf(host, version)), func(ctx context.Context) error {
		name, err := g.call(ctx, r.port, host)
		if err == nil && name != nameOf(host, version) {
			err = fmt.Errorf("it has %s", name)
		}
		return err
	}))
	t.Logf("%s: %s after %s", r.Name, nameOf(host, version), time.Since(began).Round(time.Millisecond))
}

// step lets something happen, and judges the outcome.
func (g *gateway) step(t *testing.T, what string, happens func(t *testing.T)) {
	t.Helper()
	ok := t.Run(what, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		g.ctx = ctx
		happens(t)
		g.judge(t)
	})
	if !ok {
		t.FailNow() // later steps would fail as a consequence of this one
	}
}

// judge checks what must hold after each step.
func (g *gateway) judge(t *testing.T) {
	t.Helper()
	requests := 0
	for _, l := range g.load {
		tally := l.Reset()
		requests += tally.Sent
		if err := tally.Err(); err != nil {
			t.Error(err)
		}
	}
	if n := g.dialed.Load(); n != loadConns {
		t.Errorf("the connections that stand were dialed %d times, want %d", n, loadConns)
	}
	if n, err := g.envoy.Rejected(g.ctx); err != nil || n != 0 {
		t.Errorf("%s rejected %d responses, %v", g.envoy.Name, n, err)
	}
	must(t, g.Frontends[0].UntilAlive(g.ctx, "the frontend to have all keys", g.complete))
	searched := g.noKeyInClear(t)
	t.Logf("%d requests, none failed; %d keys are in none of %d files", requests, len(g.canaries)/3, searched)
}

// keyStatus is a frontend's page about its keys (/debug/keys).
type keyStatus struct {
	Keys []struct {
		Object, HMAC, State string
		Sealed              bool
	}
	Trouble string
}

func (g *gateway) keys(ctx context.Context) (status keyStatus, err error) {
	return status, g.Frontends[0].Debug(ctx, "keys", &status)
}

// keysDir is the directory of the sealed files.
func (g *gateway) keysDir() string { return filepath.Join(g.Dir(), g.Frontends[0].Name, "keys") }

var sealedName = regexp.MustCompile(`^[0-9a-f]{64}-[0-9a-f]{16}$`)

// complete returns nil if the frontend has the newest key of each host and no other, each
// of them in a sealed file, and its directory has no part of a file.
func (g *gateway) complete(ctx context.Context) error {
	status, err := g.keys(ctx)
	if err != nil {
		return err
	}
	if status.Trouble != "" || len(status.Keys) != len(g.versions) {
		return fmt.Errorf("it has %d keys, want %d; trouble: %q", len(status.Keys), len(g.versions), status.Trouble)
	}
	for _, k := range status.Keys {
		if k.State != "here" || k.Sealed != g.sealed {
			return fmt.Errorf("the key of %s is %s, sealed %t", k.Object, k.State, k.Sealed)
		}
	}
	files, err := os.ReadDir(g.keysDir())
	if !g.sealed && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if !sealedName.MatchString(f.Name()) {
			err = errors.Join(err, fmt.Errorf("its directory has %s", f.Name()))
		}
	}
	if !g.sealed && len(files) > 0 {
		err = errors.Join(err, fmt.Errorf("without a seal key it has %d files", len(files)))
	}
	return err
}

// noKeyInClear searches all files of all processes, NATS' and logs among them, for all
// keys (KEY-1). It returns the number of files.
func (g *gateway) noKeyInClear(t *testing.T) int {
	t.Helper()
	if _, found := g.search(t, g.certificates); found == "" {
		t.Fatal("the search does not find the keys that the watchers read")
	}
	searched, found := g.search(t, g.Dir())
	if found != "" || searched < 10 {
		t.Fatalf("of %d files, %q has a private key", searched, found)
	}
	return searched
}

// search returns how many files a directory has, and one with a key in clear.
func (g *gateway) search(t *testing.T, dir string) (searched int, found string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil // a process has removed it meanwhile
		}
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		searched++
		for _, canary := range g.canaries {
			if bytes.Contains(b, canary) {
				found = path
			}
		}
		return err
	}))
	return searched, found
}

// explain logs the last output of each process if the test has failed.
func (g *gateway) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, s := range g.Servers() {
		t.Logf("Last output of %s:\n%s", s.Name, s.Tail(15))
	}
}
