package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/suite/envoytest"
)

// edge returns a Gateway on a port, whose proxies have the label app: edge.
func edge(port int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: demo}
spec:
  selector: {app: edge}
  servers: [{port: {number: %d, name: http, protocol: HTTP}, hosts: ["*"]}]
`, port)
}

// atEdge makes a VirtualService one of the Gateway edge.
func atEdge(route string) string {
	return strings.Replace(route, "spec:\n", "spec:\n  gateways: [edge]\n", 1)
}

const edgeNode = "node: {id: edge-1, cluster: edge, metadata: {LABELS: {app: edge}, NAMESPACE: demo}}\n"

// served has fields of the JSON that `serve -o json` prints.
type served struct{ Version, Address, Identifier, Bootstrap string }

// serveAt runs `meshlog serve` until the test ends, or stop.
func serveAt(t *testing.T, args ...string) (v served, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"serve", "-o", "json"}, args...))
	cmd.SetOut(w)
	cmd.SetErr(io.Discard)
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.CloseWithError(err)
		ended <- err
	}()
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		t.Fatal(err)
	}
	var once bool
	stop = func() {
		if cancel(); once {
			return
		}
		once = true
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return v, stop
}

// pastEnvoy runs a real Envoy on a frontend of the past, and returns a function that reads
// from its admin port.
func pastEnvoy(t *testing.T, bootstrap string) (envoy *program.Process, get func(ctx context.Context, path string) (string, error)) {
	t.Helper()
	dir := t.TempDir()
	operatetest.WriteFiles(t, dir, map[string]string{"envoy.yaml": bootstrap})
	admin := filepath.Join(dir, "admin")
	envoy, err := program.Start("envoy", dir, []string{
		envoytest.Envoy(t), "-c", filepath.Join(dir, "envoy.yaml"), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--admin-address-path", admin,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	return envoy, func(ctx context.Context, path string) (string, error) {
		at, err := os.ReadFile(admin)
		if err != nil {
			return "", err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimSpace(string(at))+path, nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		return string(b), err
	}
}

// A real Envoy on a frontend of the past takes the routes as they were, and its config_dump
// says by each version and by the control plane that they are the past (SRV-1).
func TestServePast(t *testing.T) {
	t.Parallel()
	port, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	m := start(t, map[string]string{"shop.yaml": shopService, "rule.yaml": subsets, "edge.yaml": edge(port), "routes.yaml": atEdge(route(90, 10))})
	operatetest.WriteFiles(t, m.Config, map[string]string{"routes.yaml": atEdge(route(50, 50))})
	m.Events.Wait(t, "serving", "version")
	before, now := versionOf(t, m, "latest~1"), versionOf(t, m, "latest")
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mesh.archive")
	if _, _, err := meshlogAt(t, "export", file, "--data", m.Data); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		where                    []string
		at, version, weight, api string
	}{
		{[]string{"--archive", file}, "latest~1", before, "90", "DELTA_GRPC"},
		{[]string{"--data", m.Data}, "latest", now, "50", "GRPC"},
	} {
		v, stop := serveAt(t, append(c.where, "--at", c.at)...)
		if v.Version != c.version || v.Identifier != "past:"+c.version || !strings.HasPrefix(v.Address, "127.0.0.1:") {
			t.Errorf("serve --at %s says %+v", c.at, v)
		}
		_, rest, _ := strings.Cut(v.Bootstrap, "\n")
		bootstrap := strings.Replace(edgeNode+rest, "DELTA_GRPC", c.api, 1)
		envoy, get := pastEnvoy(t, bootstrap)
		var dump string
		err := envoy.UntilAlive(t.Context(), "the routes of the past", func(ctx context.Context) (err error) {
			if dump, err = get(ctx, "/config_dump"); err == nil && !strings.Contains(dump, `"weighted_clusters"`) {
				err = errors.New("no routes yet")
			}
			return err
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, envoy.Tail(20))
		}
		versions, marked := strings.Count(dump, `"version_info": "`), strings.Count(dump, `"version_info": "past:`+c.version+"-")
		if versions < 4 || marked != versions || !strings.Contains(dump, `"weight": `+c.weight) || strings.Contains(dump, "error_state") {
			t.Errorf("--at %s by %s: %d of %d versions are marked, weight %s:\n%s", c.at, c.api, marked, versions, c.weight, dump)
		}
		stats, err := get(t.Context(), "/stats?filter=identifier")
		if err != nil || !strings.Contains(stats, v.Identifier) {
			t.Errorf("the control plane is not marked: %v\n%s", err, stats)
		}
		if stats, err = get(t.Context(), "/stats?filter=update_rejected"); err != nil || !strings.Contains(stats, "lds.update_rejected: 0") {
			t.Errorf("Envoy does not take the past: %v\n%s", err, stats)
		}
		stop()
		envoy.Kill()
	}
}

// serve refuses what names no version.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": shopService})
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"serve"}, "--at is missing", 2},
		{[]string{"serve", "--at", "nine"}, `version "nine": want EPOCH.SEQ`, 2},
		{[]string{"serve", "--at", "9999"}, "version 9999: never published", 3},
		{[]string{"serve", "--at", "latest", "--listen", m.XDS}, "address already in use", 1},
	} {
		_, _, err := m.meshlog(t, nil, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%v: %v, want %q with exit code %d", c.args, err, c.want, c.code)
		}
	}
}
