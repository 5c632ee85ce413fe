//go:build registries

package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/istiotest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// sinks is a MeshPolicy that gives the clients of MCP-over-xDS of one namespace everything.
const sinks = `apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec: {mcp: {sinks: [{nodeNamespace: istio-system}]}}
`

// source is a mesh that serves MCP-over-xDS.
type source struct {
	mesh  *rig.Mesh
	files *rig.ConfigDir
	port  int // of MCP-over-xDS
}

// startSource runs a mesh with the documents, and a file of sources; empty: none.
func startSource(ctx context.Context, t *testing.T, dir, documents, file string) *source {
	t.Helper()
	files, err := rig.NewConfigDir(dir)
	must(t, err)
	_, err = files.Save("mesh.yaml", documents)
	must(t, err)
	port, err := testport.TCP()
	must(t, err)
	flags := []string{"--config", files.Path, "--mcp-listen", fmt.Sprintf("127.0.0.1:%d", port)}
	if file != "" {
		flags = append(flags, "--sources", file)
	}
	mesh, err := rig.UpWith(ctx, dir, nil, flags...)
	must(t, err)
	t.Cleanup(mesh.End)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of the source:\n%s", mesh.Servers()[0].Tail(20))
		}
	})
	return &source{mesh, files, port}
}

// inSync waits until the client of MCP-over-xDS has applied all that it reads.
func (s *source) inSync(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, program.Until(ctx, "the sink to be in sync", func(ctx context.Context) error {
		text, err := s.mesh.Show(ctx, "proxy-status")
		if err == nil && (!strings.Contains(text, " SYNCED") || strings.Contains(text, "NACK") || strings.Contains(text, "STALE")) {
			err = errors.New(text)
		}
		return err
	}))
}

// ask returns what a host answers at a port of this machine.
func ask(ctx context.Context, port int, host string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return "", err
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// TestIstiodFedByMeshlog: a real istiod whose configSources name a mesh and the cluster is ready,
// and has an Envoy that is not Istio's own call the services that the mesh reads from a real
// Consul; it follows their instances (TST-6, MCP-7, MCP-15).
func TestIstiodFedByMeshlog(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{consul: consultest.Start(t, consultest.Options{})}
	w.serveInstances(t, 2)
	w.register(ctx, t, 0, "1")
	f := feed(ctx, t, "{type: consul, consul: ["+w.consul.Addr+"]}")
	f.answers(ctx, t, "web.service.consul", w.port, address(0))
	w.register(ctx, t, 1, "1")
	w.deregister(ctx, t, 0)
	f.answers(ctx, t, "web.service.consul", w.port, address(1))
	f.wellFed(ctx, t)
}

// fed is an istiod that reads a mesh, and an Envoy that the istiod configures.
type fed struct {
	from  *source
	envoy *rig.Envoy
}

// feed runs a mesh with a source, an istiod that reads the mesh, and an Envoy.
func feed(ctx context.Context, t *testing.T, entry string) *fed {
	t.Helper()
	dir := t.TempDir()
	file, err := rig.SourcesFile(dir, entry)
	must(t, err)
	from := startSource(ctx, t, dir, sinks, file)
	kube := kubetest.Start(t)
	must(t, kube.InstallIstioCRDs(ctx))
	access, err := kubetest.Kubeconfig(kube.Config())
	must(t, err)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(t, os.WriteFile(kubeconfig, access, 0o600))
	istiod := istiotest.Start(t, istiotest.Options{
		Kubeconfig: kubeconfig,
		MeshConfig: fmt.Sprintf("configSources:\n- address: xds://127.0.0.1:%d\n- address: k8s://\n", from.port),
	})
	envoy, err := rig.StartEnvoy(ctx, rig.EnvoyConfig{
		Node: "app", Dir: dir, XDS: []int{istiod.XDS},
		Overlay: "node: {id: sidecar~127.0.0.1~app.shop~shop.svc.cluster.local, cluster: app, metadata: {NAMESPACE: shop, CLUSTER_ID: Kubernetes, INTERCEPTION_MODE: NONE}}",
	})
	must(t, err)
	t.Cleanup(envoy.Kill)
	return &fed{from, envoy}
}

// answers waits until an instance answers the requests for a host.
func (f *fed) answers(ctx context.Context, t *testing.T, host string, port int, instance string) {
	t.Helper()
	must(t, f.envoy.UntilAlive(ctx, "an answer of "+instance, func(ctx context.Context) error {
		body, err := ask(ctx, port, fmt.Sprintf("%s:%d", host, port))
		if err == nil && body != instance {
			err = fmt.Errorf("%s answers", body)
		}
		return err
	}))
}

// wellFed demands that the istiod has applied all, and that Envoy has rejected nothing.
func (f *fed) wellFed(ctx context.Context, t *testing.T) {
	t.Helper()
	f.from.inSync(ctx, t)
	if n, err := f.envoy.Rejected(ctx); err != nil || n != 0 {
		t.Errorf("Envoy rejected %d responses, %v", n, err)
	}
}

// webEntry defines the service that the router of config calls.
const webEntry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.service.consul]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
`

// TestMeshReadsMesh: an Envoy of one mesh is configured by the objects of another one, which that
// mesh reads by MCP-over-xDS, and a change arrives (TST-7).
func TestMeshReadsMesh(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first, err := rig.StartBackend("first")
	must(t, err)
	t.Cleanup(first.Stop)
	second, err := rig.StartBackend("second")
	must(t, err)
	t.Cleanup(second.Stop)
	port, err := testport.TCP()
	must(t, err)
	documents := func(backend int) string {
		return sinks + "---\n" + fmt.Sprintf(gateway, port) + fmt.Sprintf(config, 80) + "---\n" + fmt.Sprintf(webEntry, backend)
	}
	dir := t.TempDir()
	from := startSource(ctx, t, t.TempDir(), documents(first.Port), "")
	file, err := rig.SourcesFile(dir, fmt.Sprintf("{type: xds, mcp-source: \"xds://127.0.0.1:%d\"}", from.port))
	must(t, err)
	reader, err := rig.UpWith(ctx, dir, nil, "--sources", file)
	must(t, err)
	t.Cleanup(reader.End)
	envoy, err := reader.Join(ctx, rig.EnvoyConfig{Node: "edge", Overlay: "node: {id: router~127.0.0.1~edge.shop~shop.svc.cluster.local, cluster: edge, metadata: {NAMESPACE: shop, LABELS: {app: edge}}}"}, port)
	must(t, err)
	t.Cleanup(envoy.Kill)
	answers := func(want string) {
		t.Helper()
		must(t, envoy.UntilAlive(ctx, "an answer of "+want, func(ctx context.Context) error {
			body, err := ask(ctx, port, "web.service.consul")
			if err == nil && body != want {
				err = fmt.Errorf("%s answers", body)
			}
			return err
		}))
	}
	answers("first")
	_, err = from.files.Save("mesh.yaml", documents(second.Port))
	must(t, err)
	answers("second")
	from.inSync(ctx, t)
}
