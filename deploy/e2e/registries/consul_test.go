//go:build registries

package registries

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// patience bounds each test.
const patience = 5 * time.Minute

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// gateway is a router on a port.
const gateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %d, name: http, protocol: HTTP}, hosts: ["*"]}
---
`

// config sends every request to the service web of Consul.
const config = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
  - route: [{destination: {host: web.service.consul, port: {number: %d}}}]
`

// route starts a mesh with a source, as an entry of --sources, and an Envoy that routes
// requests from the port entry by the documents.
func route(ctx context.Context, t *testing.T, entry int, documents, source string) (*rig.Mesh, *rig.Envoy) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "config"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "config", "edge.yaml"), []byte(fmt.Sprintf(gateway, entry)+documents), 0o600))
	file, err := rig.SourcesFile(dir, source)
	must(t, err)
	mesh, err := rig.UpWith(ctx, dir, nil, "--config", filepath.Join(dir, "config"), "--sources", file)
	must(t, err)
	t.Cleanup(mesh.End)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of the mesh:\n%s", mesh.Servers()[0].Tail(20))
		}
	})
	envoy, err := mesh.Join(ctx, rig.EnvoyConfig{Node: "edge", Overlay: "node: {id: router~127.0.0.1~edge.shop~shop.svc.cluster.local, cluster: edge, metadata: {NAMESPACE: shop, LABELS: {app: edge}}}"}, entry)
	must(t, err)
	t.Cleanup(envoy.Kill)
	return mesh, envoy
}

// world is a Consul server whose service web has instances on this machine, a mesh that
// watches it, and an Envoy that calls them.
type world struct {
	consul *consultest.Agent
	mesh   *rig.Mesh
	envoy  *rig.Envoy
	port   int // of the instances
	url    string
}

func start(ctx context.Context, t *testing.T, instances int) *world {
	t.Helper()
	w := &world{consul: consultest.Start(t, consultest.Options{})}
	entry, err := testport.TCP()
	must(t, err)
	w.url = fmt.Sprintf("http://127.0.0.1:%d/", entry)
	w.serveInstances(t, instances)
	for i := range instances {
		w.register(ctx, t, i, "1")
	}
	w.mesh, w.envoy = route(ctx, t, entry, fmt.Sprintf(config, w.port), "{type: consul, consul: ["+w.consul.Addr+"]}")
	return w
}

// serveInstances runs the instances, each at its address and all at one port.
func (w *world) serveInstances(t *testing.T, instances int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.port = l.Addr().(*net.TCPAddr).Port
	must(t, l.Close())
	for i := range instances {
		l, err := net.Listen("tcp", net.JoinHostPort(address(i), strconv.Itoa(w.port)))
		must(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, address(i)) }), ReadHeaderTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { must(t, s.Close()) })
	}
}

// address is where instance i listens.
func address(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }

func (w *world) register(ctx context.Context, t *testing.T, i int, version string) {
	t.Helper()
	must(t, w.consul.Put(ctx, "/v1/catalog/register", map[string]any{
		"Node": "n", "Address": "127.0.0.1",
		"Service": map[string]any{"ID": fmt.Sprint("web-", i), "Service": "web", "Address": address(i), "Port": w.port, "Meta": map[string]string{"version": version}},
	}, nil))
}

func (w *world) deregister(ctx context.Context, t *testing.T, i int) {
	t.Helper()
	must(t, w.consul.Put(ctx, "/v1/catalog/deregister", map[string]any{"Node": "n", "ServiceID": fmt.Sprint("web-", i)}, nil))
}

// knows waits until Envoy has an instance, or has it no more.
func (w *world) knows(ctx context.Context, t *testing.T, i int, want bool) {
	t.Helper()
	cluster := fmt.Sprintf("outbound|%d||web.service.consul", w.port)
	host := net.JoinHostPort(address(i), strconv.Itoa(w.port))
	for {
		hosts, err := w.envoy.Hosts(ctx, cluster)
		must(t, err, ctx.Err())
		if _, ok := hosts[host]; ok == want {
			return
		}
	}
}

// TST-3, REG-10: requests through Envoy reach the instances that Consul has, and go on when
// Consul is killed: the source is frozen, and `meshlog sources` says so.
func TestConsulDies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := start(ctx, t, 3)
	must(t, rig.Send(ctx, w.url, 30).Err())
	load, err := rig.StartLoad(ctx, w.url, 2)
	must(t, err)
	text, err := w.mesh.Show(ctx, "sources")
	if err != nil || !strings.Contains(text, "consul/dc1: 1 service, 3 instances; 1 polled, 0 read in turn; the oldest read was") {
		t.Errorf("sources: %v\n%s", err, text)
	}
	w.consul.Kill()
	killed := time.Now()
	must(t, program.Until(ctx, "the source to be down", func(ctx context.Context) error {
		text, err := w.mesh.Show(ctx, "sources")
		if err == nil && !strings.Contains(text, "DOWN, FROZEN") {
			err = errors.New(text)
		}
		return err
	}))
	if text, err := w.mesh.Show(ctx, "sources"); err != nil || strings.Contains(text, "read in turn are late") {
		t.Errorf("sources advise more polls while Consul is away: %v\n%s", err, text)
	}
	if took := time.Since(killed); took > 22*time.Second {
		t.Errorf("the source was down after %s, want 20 s", took)
	}
	must(t, w.consul.Start(ctx))
	w.deregister(ctx, t, 0)
	w.knows(ctx, t, 0, false)
	tally := load.Stop()
	must(t, tally.Err())
	t.Logf("%d requests, none failed", tally.Sent)
}

// TST-8, PRF-1: 1 % of 100 instances change each second, for a minute, under 1000 requests a second:
// none fails. The test prints how long a change takes from its commit to Envoy.
func TestConsulChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := start(ctx, t, 100)
	w.knows(ctx, t, 99, true)
	load, err := rig.StartLoad(ctx, w.url, 4)
	must(t, err)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var took []time.Duration
	for n := range 60 {
		<-tick.C
		i := n / 2
		began := time.Now()
		if n%2 == 0 {
			w.deregister(ctx, t, i)
		} else {
			w.register(ctx, t, i, "2")
		}
		w.knows(ctx, t, i, n%2 == 1)
		took = append(took, time.Since(began))
	}
	noneFailed(t, load.Stop(), "commit", took)
}

// noneFailed demands that no request of a minute failed, and prints how long changes took
// from what they began with to Envoy (TST-8).
func noneFailed(t *testing.T, tally rig.Tally, from string, took []time.Duration) {
	t.Helper()
	must(t, tally.Err())
	slices.Sort(took)
	t.Logf("%d requests in a minute, none failed; %s to Envoy: p50 %s, p90 %s, max %s", tally.Sent, from, took[len(took)/2], took[len(took)*9/10], took[len(took)-1])
	if tally.Sent < 30000 {
		t.Errorf("%d requests are too few", tally.Sent)
	}
}

// REG-12: a second watcher-consul of the datacenter stands by; one of another datacenter, under
// the same name, ends and says what to do. When the first one is killed, its objects stay,
// and the second one publishes within 40 s: 30 s of silence, and a listing.
func TestConsulTwins(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := consultest.Start(t, consultest.Options{})
	must(t, c.Put(ctx, "/v1/catalog/register", map[string]any{"Node": "n", "Address": "127.0.0.1", "Service": map[string]any{"Service": "web", "Port": 80}}, nil))
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "config"), 0o700))
	m, err := rig.UpWith(ctx, dir, nil, "--config", filepath.Join(dir, "config"), "--bus-watcher", "consul/x")
	must(t, err)
	t.Cleanup(m.End)
	root, err := program.Root()
	must(t, err)
	run := func(id, datacenter string) *program.Process {
		p, err := program.Start(id, dir, []string{
			filepath.Join(root, "bin", "watcher-consul"), "--id", id, "--instance", "x", "--consul", c.Addr, "--consul-datacenter", datacenter,
			"--bus", filepath.Join(m.Data, "bus"), "--admin", "127.0.0.1:0", // its key is beside the bus file
		})
		must(t, err)
		t.Cleanup(p.Kill)
		return p
	}
	shows := func(words ...string) {
		t.Helper()
		must(t, program.Until(ctx, fmt.Sprintf("sources to show %q", words), func(ctx context.Context) error {
			text, err := m.Show(ctx, "sources")
			for _, word := range words {
				if err == nil && !strings.Contains(text, word) {
					err = errors.New(text)
				}
			}
			return err
		}))
	}
	first := run("first", consultest.Datacenter)
	shows("consul/x", "first", "1 service, 1 instance")
	run("second", consultest.Datacenter)
	shows("second")
	other := run("other", "dc2")
	select {
	case <-other.Done():
	case <-ctx.Done():
		t.Fatal("the watcher of another datacenter goes on")
	}
	if said := other.Tail(20); !strings.Contains(said, "source consul/x is datacenter dc1, this is datacenter dc2: give it another --instance") {
		t.Errorf("it ended with:\n%s", said)
	}
	first.Kill()
	killed := time.Now()
	must(t, c.Put(ctx, "/v1/catalog/register", map[string]any{"Node": "n", "Address": "127.0.0.1", "Service": map[string]any{"Service": "api", "Port": 80}}, nil))
	shows("consul/x", "second", "2 services, 2 instances")
	if took := time.Since(killed); took > 40*time.Second {
		t.Errorf("the second watcher took over after %s", took)
	}
}
