package redirected_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/frontendtest"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/suite/envoytest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// waitLimit is how long a test waits for something that must happen.
const waitLimit = 60 * time.Second

const (
	webIdentity    = "spiffe://cluster.local/ns/shop/sa/web"
	clientIdentity = "spiffe://cluster.local/ns/client/sa/client"
)

// bootstrap is the bootstrap of a sidecar: the name of its workload, its namespace, its IP,
// its mode of interception, and the files of its certificate, key and roots.
const bootstrap = `
node:
  id: sidecar~%[3]s~%[1]s-1.%[2]s~%[2]s.svc.cluster.local
  cluster: %[1]s
  metadata:
    INTERCEPTION_MODE: %[4]s
    INSTANCE_IPS: %[3]s
    LABELS: {app: %[1]s}
    TLS_SERVER_CERT_CHAIN: %[5]s
    TLS_SERVER_KEY: %[6]s
    TLS_SERVER_ROOT_CERT: %[7]s
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: meshlog}}]
  lds_config: {ads: {}, resource_api_version: V3}
  cds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: meshlog
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: meshlog
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 15010}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// xdsAddress is where sidecars find the frontend, which listens in each of their namespaces.
const xdsAddress = "127.0.0.1:15010"

// settings describe what is special about a rig.
type settings struct {
	redirection // of web's pod
	documents   string
}

// rig is a mesh of two pods, each behind a sidecar: client, and web with its backends. The
// node has no sidecar, so its connections arrive as a stranger's.
type rig struct {
	*testing.T
	node, client, web *namespace
	certs             *certtest.CA // of the mesh
	mesh              *frontendtest.Mesh
	server            *frontend.Server
	dir               string // which Envoy's user can read
	envoys            map[string]*program.Process
}

func newRig(t *testing.T, s settings) *rig {
	t.Helper()
	node := newNode(t)
	r := &rig{
		T: t, node: node, client: newPod(t, node, clientIP), web: newPod(t, node, webIP),
		certs: certtest.NewCA("mesh"), dir: openDir(t), envoys: map[string]*program.Process{},
	}
	// A backend must not see two connections from one address and port, of which the caller
	// has one and a transparent Envoy the other.
	r.client.set("ipv4/ip_local_port_range", "20000 29999")
	r.web.set("ipv4/ip_local_port_range", "30000 39999")
	redirect(t, r.client, redirection{})
	redirect(t, r.web, s.redirection)
	for _, p := range ports {
		r.serve(p)
	}
	chain := memstore.NewChain()
	r.mesh = frontendtest.NewMesh(t, chain)
	v := r.mesh.Publish(meshtest.YAML(t, webEntry()+s.documents)...)
	r.frontend(chain)
	roots := certtest.WriteFile(t, r.dir, "roots.pem", r.certs.PEM())
	r.envoy(envoytest.Envoy(t), roots, r.client, "client", "client", clientIP, "REDIRECT", clientIdentity)
	mode := "REDIRECT"
	if s.transparent {
		mode = "TPROXY"
	}
	r.envoy(envoytest.Envoy(t), roots, r.web, "web", "shop", webIP, mode, webIdentity)
	r.applied(v)
	return r
}

// openDir returns a directory that other users can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // Envoy's user enters it
			t.Fatal(err)
		}
	}
	return dir
}

// frontend runs a frontend that listens in both pods.
func (r *rig) frontend(chain *memstore.Chain) {
	r.Helper()
	limits := frontend.DefaultLimits()
	limits.Drain = 10 * time.Millisecond
	var err error
	r.server, err = frontend.New(frontend.Config{
		ID: "one", Build: "test", Logger: slog.New(slog.DiscardHandler), Metrics: frontend.NewMetrics(),
		Listeners: []net.Listener{r.client.listen(xdsAddress), r.web.listen(xdsAddress)},
		Store:     memstore.Open(&memstore.File{}, store.Retention{}), Chain: chain, Head: chain.Head, Limits: limits,
	})
	r.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.server.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("the frontend ended: %v", err)
		}
	})
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// envoy runs a real Envoy in a pod, as the user that redirection leaves alone. What it runs
// and reads is where that user can read it.
func (r *rig) envoy(from, roots string, pod *namespace, name, namespace, ip, mode, identity string) {
	r.Helper()
	cert, key := r.certs.Peer(name, identity).Write(r.T, r.dir, name)
	config := certtest.WriteFile(r.T, r.dir, name+".yaml", fmt.Appendf(nil, bootstrap, name, namespace, ip, mode, cert, key, roots))
	for _, file := range []string{cert, key, roots, config} {
		r.must(os.Chown(file, proxyUID, proxyUID))
	}
	binary := filepath.Join(r.dir, "envoy")
	if err := os.Link(from, binary); err != nil && !errors.Is(err, fs.ErrExist) {
		r.must(copyFile(from, binary))
	}
	var capabilities []uintptr
	if mode == "TPROXY" {
		capabilities = []uintptr{unix.CAP_NET_ADMIN} // for sockets with addresses of others, and marks
	}
	var p *program.Process
	r.must(pod.in(func() (err error) {
		p, err = program.StartAs(proxyUID, capabilities, name, r.dir, binary, "-c", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
		return err
	}))
	r.envoys[name] = p
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("Envoy of %s:\n%s", name, p.Tail(20))
		}
		p.Kill()
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()                           // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // another user runs it
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// applied waits until both sidecars have a version.
func (r *rig) applied(v ident.Position) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), waitLimit)
	defer cancel()
	r.must(program.Until(ctx, "the ACKs of both sidecars", func(context.Context) error {
		for _, p := range r.envoys {
			if err := p.Running(); err != nil {
				cancel()
				return err
			}
		}
		report := r.server.Report()
		if a := report.GetApplied(); len(report.GetProxies()) != 2 || len(a) != 1 || a[0].GetStreams() != 2 || store.VersionOf(a[0].GetVersion()) != v {
			return fmt.Errorf("the report is %v", report)
		}
		return nil
	}))
}

// publish publishes documents and waits until both sidecars have them.
func (r *rig) publish(documents string) {
	r.Helper()
	r.applied(r.mesh.Publish(meshtest.YAML(r.T, documents)...))
}

// mode sets the mode of all ports of web, and those of some.
func (r *rig) mode(mode string, ports ...string) {
	r.Helper()
	level := ""
	if len(ports) > 0 {
		level = ", portLevelMtls: {" + strings.Join(ports, ", ") + "}"
	}
	r.publish(fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, mtls: {mode: %s}%s}
`, mode, level))
}

// stat returns a counter or a gauge of the Envoy in a pod.
func (r *rig) stat(pod *namespace, name string) string {
	r.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return pod.dial(ctx, address)
	}}}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://127.0.0.1:15000/stats?filter=^"+name+"$", nil)
	r.must(err)
	resp, err := c.Do(request)
	r.must(err)
	body, err := io.ReadAll(resp.Body)
	r.must(errors.Join(err, resp.Body.Close()))
	return strings.TrimSpace(strings.TrimPrefix(string(body), name+":"))
}
