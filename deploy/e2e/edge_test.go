package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/testport"
)

// The hosts of an edge: each has a certificate of its own, but for some.
const (
	edgeHosts = 200

	missingHost    = 3 // no directory
	mismatchedHost = 5 // the key of another certificate
	endedHost      = 7 // its certificate has ended, and is served: there is no better one (S15)
	foreignHost    = 9 // its Gateway names a credential of another namespace

	// rotations is how often a certificate is replaced while requests flow.
	rotations = 50
)

// edge is a router that decrypts HTTPS for many hosts.
type edge struct {
	*testing.T
	ctx          context.Context
	port         int
	certificates string // the directory
	ca           *certtest.CA
	mesh         *rig.Mesh
	files        rig.TLS // of its proxies
	sealKey      string  // a file
}

func hostName(i int) string { return fmt.Sprintf("host-%d.test", i) }

// TestEdge serves HTTPS for 200 hosts whose certificates are in a directory. Those whose
// credential is missing, wrong or foreign break alone (SDS-6, T-2). A certificate is replaced
// while requests flow (KEY-11). Then everything dies but Envoy, the directory is gone,
// and a proxy that starts cold, with the delta protocol, has all keys from the sealed files
// (KEY-9, T-3); with another seal key a frontend has none, and says so.
func TestEdge(t *testing.T) {
	t.Run("at once", func(t *testing.T) { testEdge(t, "") })
	// SDS-12: the same when the proxy asks for a certificate when it first needs it.
	t.Run("on demand", func(t *testing.T) {
		testEdge(t, `---
apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec: {gatewayCertificates: onDemand}
`)
	})
}

func testEdge(t *testing.T, policy string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	e := &edge{T: t, ctx: ctx, certificates: filepath.Join(t.TempDir(), "certificates"), ca: certtest.NewCA("edge")}
	flags := e.configure(policy)
	e.start(flags)
	first := e.proxy("edge-1", false)

	began := time.Now()
	for i := range edgeHosts {
		e.answers(first, i, "v1")
	}
	t.Logf("%d hosts answer %s after their proxy was ready", edgeHosts-3, time.Since(began).Round(time.Millisecond))
	e.strangers(first)

	// Rotation while requests flow.
	load, err := rig.StartCalls(ctx, hostName(0), 4, func(ctx context.Context) (string, int, error) {
		name, err := e.call(ctx, first, 0)
		return name, http.StatusOK, err
	}, func() {})
	e.must(err)
	for n := range rotations {
		version := fmt.Sprint("v", n+2)
		saved := time.Now()
		e.credential(0, version, day())
		e.serves(first, 0, version)
		t.Logf("%s is in handshakes %s after it was saved", version, time.Since(saved).Round(time.Millisecond))
	}
	if tally := load.Stop(); tally.Err() != nil && !onlyNames(tally) {
		t.Errorf("requests while certificates are replaced: %v", tally.Err())
	}

	// A credential that comes later.
	e.credential(missingHost, "v1", day())
	e.serves(first, missingHost, "v1")

	// Everything but Envoy dies, and the directory is gone. A frontend alone starts.
	up := e.mesh.Frontends[0]
	e.must(up.UntilAlive(ctx, "the newest version to be on the disk", func(ctx context.Context) error {
		m, err := up.Metrics(ctx)
		if err == nil && m["meshlog_frontend_persisted"].Sum != 1 {
			err = errors.New("it is not")
		}
		return err
	}))
	up.Kill()
	e.serves(first, 1, "v1")
	first.Kill() // its ports are for the next ones
	e.must(os.Rename(e.certificates, e.certificates+".gone"))
	e.wrongSealKey(up)
	alone, err := rig.StartFrontendTLS(e.TempDir(), "frontend", e.mesh.Data, up.XDS, up.TLS, "--seal-key-file", e.sealKey)
	e.must(err)
	t.Cleanup(alone.Kill)
	e.must(alone.Ready(ctx))
	second := e.proxy("edge-2", true)
	for _, i := range []int{0, 1, missingHost, edgeHosts - 1} {
		want := "v1"
		if i == 0 {
			want = fmt.Sprint("v", rotations+1)
		}
		e.serves(second, i, want)
	}

	// No private key is in any file of the mesh, but those of the proxies (KEY-1).
	e.noKeyIn(e.mesh.Data)
}

// wrongSealKey starts a frontend with another seal key: it has none of the keys, and says so.
func (e *edge) wrongSealKey(up *rig.Server) {
	e.Helper()
	other := filepath.Join(e.TempDir(), "other.key")
	e.write(other, []byte("fedcba9876543210fedcba9876543210"))
	wrong, err := rig.StartFrontendTLS(e.TempDir(), "wrong", e.mesh.Data, up.XDS, up.TLS, "--seal-key-file", other)
	e.must(err)
	defer wrong.Kill()
	e.must(wrong.UntilAlive(e.ctx, "the frontend to say that its seal key is wrong", func(ctx context.Context) error {
		var status struct {
			Keys    []struct{ Object, State string }
			Trouble string
		}
		if err := wrong.Debug(ctx, "keys", &status); err != nil {
			return err
		}
		for _, k := range status.Keys {
			if k.State == "here" {
				e.Errorf("with another seal key the frontend has the key of %s", k.Object)
			}
		}
		if !strings.Contains(status.Trouble, "was sealed with the seal key") {
			return fmt.Errorf("it says %q", status.Trouble)
		}
		return nil
	}))
}

// proxy is an Envoy and the port on which it accepts HTTPS.
type proxy struct {
	*rig.Envoy
	port int
}

func (e *edge) must(err error) {
	e.Helper()
	if err != nil {
		for _, s := range e.mesh.Servers() {
			e.Logf("Last output of %s:\n%s", s.Name, s.Tail(15))
		}
		e.Fatal(err)
	}
}

func day() time.Time { return time.Now().Add(24 * time.Hour) }

// credential writes the credential of a host. The name of the certificate says which
// version it is.
func (e *edge) credential(host int, version string, ends time.Time) {
	e.Helper()
	pair := e.ca.Server(hostName(host)+" "+version, ends)
	namespace := "default"
	if host == foreignHost {
		namespace = "other"
	}
	if host == mismatchedHost {
		pair.Key = e.ca.Server("other", ends).Key
	}
	// A directory is replaced as one, so that no certificate meets another's key.
	path := filepath.Join(e.certificates, namespace, fmt.Sprint("credential-", host))
	next := filepath.Join(e.certificates, "..", fmt.Sprint("next-", host))
	e.write(filepath.Join(next, "tls.crt"), pair.Cert)
	e.write(filepath.Join(next, "tls.key"), pair.Key)
	if err := os.Rename(path, next+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		e.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		e.Fatal(err)
	}
	if err := errors.Join(os.Rename(next, path), os.RemoveAll(next+".old")); err != nil {
		e.Fatal(err)
	}
}

func (e *edge) write(path string, content []byte) {
	e.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		e.Fatal(err)
	}
}

// configure writes what the mesh reads, and returns its flags.
func (e *edge) configure(policy string) []string {
	e.Helper()
	dir := e.TempDir()
	backend, err := rig.StartBackend("backend")
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(backend.Stop)
	if e.port, err = testport.TCP(); err != nil {
		e.Fatal(err)
	}
	var servers strings.Builder
	for i := range edgeHosts {
		ends := day()
		if i == endedHost {
			ends = time.Now().Add(-time.Hour)
		}
		if i != missingHost {
			e.credential(i, "v1", ends)
		}
		credential := fmt.Sprint("credential-", i)
		if i == foreignHost {
			credential = "other/" + credential
		}
		fmt.Fprintf(&servers, `
    - port: {number: %d, name: https-%d, protocol: HTTPS}
      bind: 127.0.0.1
      hosts: [%s]
      tls: {mode: SIMPLE, credentialName: %s}`, e.port, i, hostName(i), credential)
	}
	e.write(filepath.Join(dir, "mesh", "edge.yaml"), fmt.Appendf(nil, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:%s
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: default}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
    - route: [{destination: {host: backend.internal}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend, namespace: default}
spec:
  hosts: [backend.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
%s`, servers.String(), backend.Port, policy))
	e.write(filepath.Join(dir, "secret.key"), []byte("the key of the HMACs of this test, 32 bytes and more\n"))
	e.sealKey = filepath.Join(dir, "seal.key")
	e.write(e.sealKey, []byte("0123456789abcdef0123456789abcdef"))
	return []string{
		"--config", filepath.Join(dir, "mesh"), "--certificates", e.certificates,
		"--secret-key-file", filepath.Join(dir, "secret.key"), "--seal-key-file", e.sealKey,
	}
}

func (e *edge) start(flags []string) {
	e.Helper()
	ca, err := rig.NewCA(e.TempDir(), "mesh")
	if err != nil {
		e.Fatal(err)
	}
	serves, err := ca.Sign("frontend", "")
	if err != nil {
		e.Fatal(err)
	}
	if e.files, err = ca.Sign("edge", "spiffe://cluster.local/ns/default/sa/edge"); err != nil {
		e.Fatal(err)
	}
	if e.mesh, err = rig.UpWith(e.ctx, e.TempDir(), &serves, flags...); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(e.mesh.End)
}

// proxy starts an Envoy.
func (e *edge) proxy(name string, delta bool) proxy {
	e.Helper()
	began := time.Now()
	envoy, err := rig.StartEnvoy(e.ctx, rig.EnvoyConfig{
		Node: name, Cluster: "demo", Delta: delta, TLS: &e.files, XDS: []int{e.mesh.Frontends[0].XDS}, Dir: e.TempDir(),
	})
	e.must(err)
	e.Cleanup(envoy.Kill)
	e.must(envoy.Ready(e.ctx))
	e.must(envoy.Listening(e.ctx, e.port))
	took := time.Since(began)
	e.Logf("%s is ready after %s", name, took.Round(time.Millisecond))
	if took > 6*time.Second {
		e.Errorf("%s is ready after %s, want 6s at most (T-2)", name, took)
	}
	return proxy{envoy, e.port}
}

// call calls a host on a new connection, and returns the name of the certificate.
func (e *edge) call(ctx context.Context, p proxy, host int) (string, error) {
	client := http.Client{Timeout: rig.RequestTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			ServerName: hostName(host), InsecureSkipVerify: true, //nolint:gosec // the name says which certificate it is
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", p.port), nil)
	if err != nil {
		return "", err
	}
	req.Host = hostName(host)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", hostName(host), resp.Status)
	}
	return resp.TLS.PeerCertificates[0].Subject.CommonName, nil
}

// strangers connects with 10,000 server names that no server has: each handshake is
// reset, and the proxy asks for no secret because of it.
func (e *edge) strangers(p proxy) {
	e.Helper()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10_000 / 8 {
				d := tls.Dialer{Config: &tls.Config{ServerName: rand.Text() + ".test", InsecureSkipVerify: true}} //nolint:gosec // there is no certificate
				if c, err := d.DialContext(e.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", p.port)); err == nil {
					c.Close()
					e.Errorf("a server answers to %s", d.Config.ServerName)
				}
			}
		})
	}
	all.Wait()
	var dump struct {
		Configs []struct {
			Active  []any `json:"dynamic_active_secrets"`
			Warming []any `json:"dynamic_warming_secrets"`
		}
	}
	e.must(p.ConfigDump(e.ctx, &dump))
	secrets := 0
	for _, c := range dump.Configs {
		secrets += len(c.Active) + len(c.Warming)
	}
	if secrets < edgeHosts-3 || secrets > edgeHosts {
		e.Errorf("the proxy has or waits for %d secrets, of %d hosts", secrets, edgeHosts)
	}
}

// answers checks that a host answers with its certificate; those without one do not.
func (e *edge) answers(p proxy, host int, version string) {
	e.Helper()
	name, err := e.call(e.ctx, p, host)
	switch want := hostName(host) + " " + version; {
	case host == missingHost || host == mismatchedHost || host == foreignHost:
		if err == nil {
			e.Errorf("%s, which has no credential of its own, answers with %s", hostName(host), name)
		}
	case err != nil:
		e.Errorf("%s: %v", hostName(host), err)
	case name != want:
		e.Errorf("%s has the certificate %s", hostName(host), name)
	}
}

// serves waits until a host answers with a version of its certificate.
func (e *edge) serves(p proxy, host int, version string) {
	e.Helper()
	e.must(p.UntilAlive(e.ctx, hostName(host)+" to have "+version, func(ctx context.Context) error {
		name, err := e.call(ctx, p, host)
		if err == nil && name != hostName(host)+" "+version {
			err = fmt.Errorf("it has %s", name)
		}
		return err
	}))
}

// onlyNames reports whether the calls differ only in the certificates' names.
func onlyNames(t rig.Tally) bool { return t.Statuses[http.StatusOK] == t.Sent }

// noKeyIn searches the files of a directory for the keys of the credentials.
func (e *edge) noKeyIn(dir string) {
	e.Helper()
	var keys []string
	e.must(filepath.WalkDir(e.certificates+".gone", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "tls.key" {
			return err
		}
		b, err := os.ReadFile(path)
		// A line of the PEM: the log could have the text in another wrapping.
		keys = append(keys, strings.Split(string(b), "\n")[1])
		return err
	}))
	searched := 0
	e.must(filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		searched++
		for _, k := range keys {
			if strings.Contains(string(b), k) {
				e.Errorf("%s has a private key", path)
				break
			}
		}
		return err
	}))
	if len(keys) < edgeHosts-1 || searched < 3 {
		e.Errorf("%d keys were searched in %d files", len(keys), searched)
	}
}
