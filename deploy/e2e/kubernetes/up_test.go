package kubernetes

import (
	"context"
	"fmt"
	"testing"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/testport"
)

// oneProcess runs `meshlog up` on the east and on a directory: the routes in its
// files lead to the pods of the cluster.
func (w *world) oneProcess(ctx context.Context, t *testing.T) {
	dir := t.TempDir()
	port, err := testport.TCP()
	must(t, err)
	files, err := rig.NewConfigDir(dir)
	must(t, err)
	_, err = files.Save("edge.yaml", fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: own, namespace: files}
spec:
  selector: {app: own}
  servers: [{port: {number: %d, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: own, namespace: files}
spec:
  hosts: ["*"]
  gateways: [own]
  http: [{route: [{destination: {host: %s, subset: v2}}]}]
`, port, cluster.Host))
	must(t, err)
	up, err := rig.UpWith(ctx, dir, nil, "--config", files.Path, "--kubeconfig", w.east.Kubeconfig, "--cluster", w.east.Name)
	must(t, err)
	defer up.End()
	envoy, err := up.Join(ctx, rig.EnvoyConfig{Node: "own", Overlay: "node: {id: own, cluster: demo, metadata: {LABELS: {app: own}}}"}, port)
	must(t, err)
	defer envoy.Kill()
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	tally := rig.Send(ctx, url, 100)
	if must(t, tally.Err()); tally.Backends[w.v2.Backend.Name] != tally.Sent {
		t.Errorf("%+v, want %s alone", tally, w.v2.Backend.Name)
	}

	// Both the cluster and the directory are required sources.
	var sources []struct {
		Source, Instance, State string
		Required                bool
	}
	must(t, up.CLI(ctx, &sources, "sources"))
	for _, s := range sources {
		if s.State != "following" || !s.Required {
			t.Errorf("source %+v, want one that is required and followed", s)
		}
	}
	if len(sources) != 3 { // the third is the process's own policy
		t.Errorf("sources %+v, want the directory, the cluster and the process", sources)
	}
	must(t, up.Frontends[0].Stop())
}
