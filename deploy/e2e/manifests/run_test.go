package manifests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// TestRun runs the deployment that the manifests describe, with the Secrets of
// `meshlog bus-auth`, the settings of the containers and the rights of the
// ServiceAccount, up to a request through the Envoy of the example.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	render, dir := kustomize(t), tree(t)
	secrets := filepath.Join(t.TempDir(), "secrets")
	busAuth(ctx, t, secrets)

	c, err := cluster.Start(ctx, t.TempDir(), "default")
	must(t, err)
	t.Cleanup(c.End)
	text := render(dir)
	must(t, c.Apply(ctx, text))
	k := newKubelet(ctx, t)
	k.know(parse(t, text))
	k.know(parse(t, render(secrets)))
	k.accounts["watcher-kube"] = serviceAccount(ctx, t, c, "watcher-kube")
	k.services["frontend.meshlog.svc"] = "frontend-0"

	all := workloads(t, parse(t, text))
	for _, name := range []string{"nats", "builder", "watcher-kube", "frontend"} {
		k.start(all[name])
	}
	for _, w := range all {
		k.ready(w)
	}

	// In the example, the shop's pods come from the test, and its Envoy from the
	// manifests.
	example := render(filepath.Join(dir, "example"))
	edge := workloads(t, parse(t, example))["edge"]
	example = strings.ReplaceAll(example, "10000", fmt.Sprint(k.port("edge-0", "10000")))
	// Pods of the test are on the network of their node.
	must(t, c.Apply(ctx, example, "{apiVersion: v1, kind: Namespace, metadata: {name: demo, labels: {pod-security.kubernetes.io/enforce: privileged}}}"))
	policy, err := os.ReadFile(filepath.Join(dir, "mesh-policy.yaml"))
	must(t, err)
	must(t, c.Apply(ctx, string(policy)))
	for _, version := range []string{"v1", "v2"} {
		_, err := c.Run(ctx, "demo", "shop", version)
		must(t, err)
	}
	k.know(parse(t, example))
	k.start(edge)
	k.ready(edge)
	url := fmt.Sprintf("http://127.0.0.1:%d/", k.port("edge-0", "10000"))
	must(t, program.Until(ctx, "an answer of the shop", func(ctx context.Context) error {
		return rig.Send(ctx, url, 1).Err()
	}))

	got := sources(t, k, secrets)
	if len(got) != 1 || got[0].State != "following" || !got[0].Synced || !got[0].Required || len(got[0].Standbys) != 1 {
		t.Errorf("want one source that is followed, synced and required, with a standby: %+v", got)
	}
	for _, s := range got {
		for _, p := range s.Problems {
			// Missing definitions of other projects' kinds are expected.
			if p.Severity != "info" {
				t.Errorf("%s/%s: %s: %s", s.Source, s.Instance, p.Severity, p.Reason)
			}
		}
	}
	k.permitted()
}

// busAuth writes the keys of the bus, as the README says, with those of other watchers.
func busAuth(ctx context.Context, t *testing.T, secrets string, others ...string) {
	t.Helper()
	args := []string{"--watcher", "kubernetes/default", "--watcher", "ca/default", "--watcher", "jwks/default", "--observer", "--console", "--tls", "127.0.0.1",
		"--routes", "nats-0.nats,nats-1.nats,nats-2.nats,127.0.0.1"} // the last one for the certificate: here all pods are on one machine
	for _, w := range others {
		args = append(args, "--watcher", w)
	}
	must(t, rig.BusAuth(ctx, secrets, args...))
	copyFile(t, filepath.Join(tree(t), "secrets", "kustomization.yaml"), secrets)
}

// permitted demands that the server denied no process a subject of the bus.
func (k *kubelet) permitted() {
	k.Helper()
	for name, p := range k.run {
		log, err := os.ReadFile(p.LogPath)
		must(k.T, err)
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "iolation") || strings.Contains(line, "denies") {
				k.Errorf("%s: %s", name, line)
			}
		}
	}
}

// source is the report of a source by `meshlog sources`.
type source struct {
	Source, Instance, State string
	Synced, Required        bool
	Standbys                []string
	Problems                []struct{ Severity, Reason string }
}

// sources runs the README's command: through a port that leads to one server.
func sources(t *testing.T, k *kubelet, secrets string) (all []source) {
	t.Helper()
	bin, err := rig.Bin("meshlog")
	must(t, err)
	cmd := exec.CommandContext(k.ctx, bin, "sources", "-o", "json", "--bus", fmt.Sprintf("tls://127.0.0.1:%d", k.port("nats-0", "4222")),
		"--bus-nkey", filepath.Join(secrets, "operator.nk"), "--bus-ca", filepath.Join(secrets, "ca.pem"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	must(t, json.Unmarshal(out, &all))
	return all
}

func copyFile(t *testing.T, path, dir string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o600))
}
