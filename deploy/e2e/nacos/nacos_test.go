//go:build registries

package nacos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/testport"
)

// patience bounds each test.
const patience = 4 * time.Minute

// config sends all requests of an Envoy to the service web of the registry.
const config = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %d, name: http, protocol: HTTP}
    hosts: ["*"]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
  - route:
    - destination: {host: web.DEFAULT-GROUP.public.nacos, port: {number: 80}}
`

const cluster = "outbound|80||web.DEFAULT-GROUP.public.nacos"

// world is a registry, a mesh that watches it, and an Envoy.
type world struct {
	*testing.T
	ctx      context.Context
	nacos    *nacostest.Server
	mesh     *rig.Mesh
	envoy    *rig.Envoy
	url      string
	backends []*rig.Backend
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, backends int) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	w := &world{T: t, ctx: ctx, nacos: nacostest.Start(t, nacostest.Options{})}
	for i := range backends {
		b, err := rig.StartBackend(fmt.Sprint("web-", i))
		must(t, err)
		t.Cleanup(b.Stop)
		w.backends = append(w.backends, b)
	}
	port, err := testport.TCP()
	must(t, err)
	w.url = fmt.Sprintf("http://127.0.0.1:%d/", port)
	dir := t.TempDir()
	files := filepath.Join(dir, "config")
	must(t, os.MkdirAll(files, 0o755))
	must(t, os.WriteFile(filepath.Join(files, "edge.yaml"), fmt.Appendf(nil, config, port), 0o600))
	file, err := rig.SourcesFile(dir, "{type: nacos, nacos: ["+w.nacos.Addr+`], nacos-ports: ["*=80"]}`)
	must(t, err)
	w.mesh, err = rig.UpWith(ctx, dir, nil, "--config", files, "--sources", file)
	must(t, err)
	t.Cleanup(w.mesh.End)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of meshlog up:\n%s", w.mesh.Watcher.Tail(20))
		}
	})
	w.register(w.backends[0])
	w.envoy, err = w.mesh.Join(ctx, rig.EnvoyConfig{
		Node: "edge", Overlay: "node: {id: edge, cluster: demo, metadata: {NAMESPACE: shop, LABELS: {app: edge}}}",
	}, port)
	must(t, err)
	t.Cleanup(w.envoy.Kill)
	w.await(w.backends[0], true)
	return w
}

func instance(b *rig.Backend) url.Values {
	return url.Values{"serviceName": {"web"}, "ip": {"127.0.0.1"}, "port": {strconv.Itoa(b.Port)}, "ephemeral": {"false"}}
}

func (w *world) register(b *rig.Backend) {
	w.Helper()
	must(w, w.nacos.Call(w.ctx, http.MethodPost, "/nacos/v1/ns/instance", instance(b), nil))
}

func (w *world) deregister(b *rig.Backend) {
	w.Helper()
	must(w, w.nacos.Call(w.ctx, http.MethodDelete, "/nacos/v1/ns/instance", instance(b), nil))
}

// await waits until Envoy sends requests to a backend, or no longer does.
func (w *world) await(b *rig.Backend, want bool) {
	w.Helper()
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port))
	must(w, w.envoy.UntilAlive(w.ctx, fmt.Sprintf("Envoy to have %s: %t", b.Name, want), func(ctx context.Context) error {
		hosts, err := w.envoy.Hosts(ctx, cluster)
		if err == nil && hosts[at] != want {
			err = fmt.Errorf("it has %v", hosts)
		}
		return err
	}))
}

// PRF-2: from the registration of an instance until Envoy sends requests to it.
func TestChangeReachesEnvoy(t *testing.T) {
	w := start(t, 2)
	must(t, w.envoy.UntilAlive(w.ctx, "the status of the registry", func(ctx context.Context) error { // REG-15
		text, err := w.mesh.Show(ctx, "sources")
		if err == nil && !strings.Contains(text, "nacos/public: 1 service, 1 instance; 1 polled, 0 read in turn; the oldest read was") {
			err = errors.New(text)
		}
		return err
	}))
	const changes = 40
	var took []time.Duration
	for range changes {
		began := time.Now()
		w.register(w.backends[1])
		w.await(w.backends[1], true)
		took = append(took, time.Since(began))
		w.deregister(w.backends[1])
		w.await(w.backends[1], false)
	}
	slices.Sort(took)
	t.Logf("registered -> endpoint of Envoy, %d times: p50 %s, p99 %s", changes, took[changes/2].Round(time.Millisecond), took[changes-1].Round(time.Millisecond))
	if tally := rig.Send(w.ctx, w.url, 100); tally.Err() != nil {
		t.Error(tally.Err())
	}
}

// TST-8: while one instance of 100 is replaced each second, no request fails; nor while the
// registry is down.
func TestRequestsWhileInstancesChange(t *testing.T) {
	const all, seconds, spare = 100, 60, 5
	w := start(t, all+spare)
	for _, b := range w.backends[1:all] {
		w.register(b)
	}
	w.await(w.backends[all-1], true)
	load, err := rig.StartLoad(w.ctx, w.url, 4)
	must(t, err)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range seconds {
		<-tick.C
		w.register(w.backends[(all+i)%(all+spare)])
		w.deregister(w.backends[i%(all+spare)])
	}
	must(t, w.nacos.Pause())
	pause := time.NewTimer(20 * time.Second)
	defer pause.Stop()
	<-pause.C
	must(t, w.nacos.Resume())
	tally := load.Stop()
	t.Logf("%d requests, %d backends answered", tally.Sent, len(tally.Backends))
	if err := tally.Err(); err != nil {
		t.Error(err)
	}
	if len(tally.Backends) < all {
		t.Errorf("%d backends answered", len(tally.Backends))
	}
}
