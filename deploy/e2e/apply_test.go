package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/testport"
)

// applied are objects that operators apply: a listener of its own, and where its requests
// go. The verbs are the ports of the listener and of the backend.
const applied = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: applied, namespace: demo}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %[1]d, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: applied, namespace: demo}
spec:
  hosts: [applied.internal]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %[2]d}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: applied, namespace: demo}
spec:
  hosts: ["*"]
  gateways: [applied]
  http: [{route: [{destination: {host: applied.internal, port: {number: 80}}}]}]
`

// API-1, API-4: objects that an operator applies are served to a real Envoy like those of
// a watched directory, and are gone after a delete; with `meshlog up`, and with separate
// processes behind the accounts of the bus.
func TestApply(t *testing.T) {
	for name, arranged := range arrangements {
		t.Run(name, func(t *testing.T) {
			f := start(t, arranged)
			port, err := testport.TCP()
			f.must(err)
			file := filepath.Join(t.TempDir(), "applied.yaml")
			f.must(os.WriteFile(file, fmt.Appendf(nil, applied, port, f.v1.Port), 0o600))
			at := fmt.Sprintf("http://127.0.0.1:%d/", port)

			out, err := f.mesh.Show(f.ctx, "apply", "-f", file, "--dry-run")
			if f.must(err); !strings.Contains(out, "3 created. Nothing was written") {
				t.Errorf("dry run:\n%s", out)
			}
			f.during("objects are applied", func() {
				var v struct {
					Version          string
					Applied, Streams int
				}
				f.must(f.mesh.CLI(f.ctx, &v, "apply", "-f", file, "--wait", "100%"))
				if v.Version == "" || v.Applied != 1 || v.Streams != 1 {
					t.Errorf("apply --wait: %+v", v)
				}
			})
			f.must(f.envoy.Listening(f.ctx, port))
			if status, body := f.get(at); status != http.StatusOK || body != f.v1.Name {
				t.Errorf("after apply: %d %q, want the answer of %s", status, body, f.v1.Name)
			}
			var sources []struct{ Source, State string }
			f.must(f.mesh.CLI(f.ctx, &sources, "sources"))
			if len(sources) == 0 || sources[0].Source != "api" || sources[0].State != "at rest" {
				t.Errorf("sources: %+v", sources)
			}

			// What get prints changes nothing.
			var got json.RawMessage
			f.must(f.mesh.CLI(f.ctx, &got, "get"))
			again := filepath.Join(t.TempDir(), "got.json")
			f.must(os.WriteFile(again, got, 0o600))
			if out, err := f.mesh.Show(f.ctx, "apply", "-f", again); err != nil || !strings.Contains(out, "3 unchanged") {
				t.Errorf("apply of what get prints: %v\n%s", err, out)
			}

			_, err = f.mesh.Show(f.ctx, "delete", "VirtualService", "applied", "-n", "demo", "--wait", "100%")
			f.must(err)
			f.settle()
			if status, _ := f.get(at); status != http.StatusNotFound {
				t.Errorf("after the delete of the route: %d, want 404", status)
			}
			if out, err = f.mesh.Show(f.ctx, "delete", "-f", file); err != nil || !strings.Contains(out, "2 deleted, in version") {
				t.Errorf("delete -f: %v\n%s", err, out)
			}
			f.nothingRejected()
		})
	}
}

// get sends one request.
func (f *fixture) get(url string) (status int, body string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	f.must(err)
	resp, err := http.DefaultClient.Do(req)
	f.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	f.must(err)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// later is an object that is applied after the newest version.
const later = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: later, namespace: demo}
spec: {hosts: [later.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
`

// API-4: after a loss of the log, the applied objects that the newest version has are served
// as before. One that was applied after it is lost, and commands say so until the next
// apply.
func TestApplyAfterLoss(t *testing.T) {
	f := start(t, apart(1, 1))
	port, err := testport.TCP()
	f.must(err)
	dir := t.TempDir()
	file, lost := filepath.Join(dir, "applied.yaml"), filepath.Join(dir, "later.yaml")
	f.must(os.WriteFile(file, fmt.Appendf(nil, applied, port, f.v1.Port), 0o600))
	f.must(os.WriteFile(lost, []byte(later), 0o600))
	_, err = f.mesh.Show(f.ctx, "apply", "-f", file, "--wait", "100%")
	f.must(err)

	builder := f.mesh.Builders[0]
	builder.Kill()
	// It is on the log, and no version has it: the command waits in vain.
	if out, err := f.mesh.Show(f.ctx, "apply", "-f", lost, "--timeout", "2s"); err == nil || !strings.Contains(out, "1 created, on the log at") {
		t.Fatalf("apply without a builder: %v\n%s", err, out)
	}
	f.mesh.NATS.Kill()
	f.must(os.RemoveAll(filepath.Join(f.mesh.NATS.Data, "jetstream")))
	f.must(f.mesh.NATS.Restart(f.ctx))
	f.must(builder.Restart())
	f.must(builder.Ready(f.ctx))

	const said = "The log was lost or rewound: epoch "
	out, err := f.mesh.ShowAll(f.ctx, "get", "ServiceEntry", "-n", "demo")
	if f.must(err); !strings.Contains(out, said) || !strings.Contains(out, "The 3 objects of api/default are those of a checkpoint") || strings.Contains(out, "later") {
		t.Errorf("get after the loss:\n%s", out)
	}
	f.must(f.envoy.Listening(f.ctx, port))
	if status, body := f.get(fmt.Sprintf("http://127.0.0.1:%d/", port)); status != http.StatusOK || body != f.v1.Name {
		t.Errorf("after the loss: %d %q, want the answer of %s", status, body, f.v1.Name)
	}
	if out, err = f.mesh.ShowAll(f.ctx, "apply", "-f", lost, "--wait", "100%"); err != nil || !strings.Contains(out, said) || !strings.Contains(out, "1 created") {
		t.Errorf("apply after the loss: %v\n%s", err, out)
	}
	if out, err = f.mesh.ShowAll(f.ctx, "apply", "-f", lost); err != nil || strings.Contains(out, said) || !strings.Contains(out, "1 unchanged") {
		t.Errorf("the next apply: %v\n%s", err, out)
	}
}
