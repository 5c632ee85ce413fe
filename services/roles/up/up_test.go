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
