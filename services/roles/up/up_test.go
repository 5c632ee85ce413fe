package up

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/internal/process"
)

// KEY-3, KEY-7: the frontend asks the watchers of --certificates and of --kubeconfig by a
// function call, others over the bus, and checks the HMACs with the watchers' key.
func TestKeys(t *testing.T) {
	s := DefaultSettings()
	s.Config, s.Data = t.TempDir(), t.TempDir()
	sources := func() (calls int) {
		t.Helper()
		_, keepers, err := s.sources(&process.Process{Log: slog.New(slog.DiscardHandler)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := s.keys(keepers)
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(s.Data, "auth", "frontend.xk"); keys.Ring.File != want {
			t.Errorf("the frontend's xkey is %q, want %q", keys.Ring.File, want)
		}
		if got := string(keys.Sums); s.Certificates != "" && got != "a key of sixteen bytes" {
			t.Errorf("the key of the HMACs is %q", got)
		}
		if (keys.Seal != nil) != (s.Frontend.SealKeyFile != "") {
			t.Errorf("seal key: %v", keys.Seal)
		}
		for shard, ask := range keys.Keepers {
			if ask == nil || shard != fileShard && shard != s.Kube.Shard() {
				t.Errorf("a keeper of %s", shard)
			}
		}
		return len(keys.Keepers)
	}
	if n := sources(); n != 0 {
		t.Errorf("%d keepers without --certificates", n)
	}
	s.Certificates = t.TempDir()
	s.Kube.Secrets.KeyFile = certtest.WriteFile(t, t.TempDir(), "hmac", []byte("a key of sixteen bytes\n"))
	s.Frontend.SealKeyFile = certtest.WriteFile(t, t.TempDir(), "seal", bytes.Repeat([]byte("s"), 32))
	if err := os.Chmod(s.Frontend.SealKeyFile, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := sources(); n != 1 {
		t.Errorf("%d keepers with --certificates, want 1", n)
	}
	s.Kube.Kubeconfig = certtest.WriteFile(t, t.TempDir(), "config", []byte("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}"))
	if n := sources(); n != 2 {
		t.Errorf("%d keepers with --kubeconfig too, want 2", n)
	}
	s.Frontend.SealKeyFile += "-missing"
	if _, err := s.keys(nil); err == nil || !strings.Contains(err.Error(), "--seal-key-file") {
		t.Errorf("a missing seal key: %v", err)
	}
}

// MC-18: with configSources the other settings of sources are errors, and so is a MeshConfig
// that cannot be used; the cluster of --kubeconfig is that of k8s://.
func TestConfigSources(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mesh   string
		change func(*Settings)
		want   string // a part of the error; empty: --mesh-config is no reason for one
	}{
		"alone":                     {"configSources: [{address: 'fs://" + dir + "'}]", func(*Settings) {}, ""},
		"a directory":               {"configSources: [{address: 'k8s://'}]", func(s *Settings) { s.Config = dir }, "--config has no effect: configSources of "},
		"the cluster":               {"configSources: [{address: 'k8s://'}]", func(s *Settings) { s.Kube.Kubeconfig = "kubeconfig" }, ""},
		"another cluster":           {"configSources: [{address: 'xds://a:1'}]", func(s *Settings) { s.Kube.Kubeconfig = "kubeconfig" }, "--kubeconfig has no effect: configSources of "},
		"a list of sources":         {"configSources: [{address: 'xds://a:1'}]", func(s *Settings) { s.Sources.File = "sources.yaml" }, "--sources has no effect: configSources of "},
		"an error":                  {"configSources: [{address: 'mcp://a:1'}]", func(*Settings) {}, `mesh.yaml:1: configSources[0].address: "mcp://a:1": there is no scheme "mcp"`},
		"none, and a directory":     {"connectTimeout: 1s", func(s *Settings) { s.Config = dir }, ""},
		"none, and nothing to read": {"connectTimeout: 1s", func(*Settings) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := DefaultSettings()
			s.Data, s.Sources.MeshConfig = t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(s.Sources.MeshConfig, []byte(c.mesh), 0o600); err != nil {
				t.Fatal(err)
			}
			c.change(s)
			err := s.Check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
