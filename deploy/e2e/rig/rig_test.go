package rig

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

func TestTally(t *testing.T) {
	b, err := StartBackend("one")
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", b.Port)
	got := Send(t.Context(), url, 50)
	if err := got.Err(); err != nil || got.Backends["one"] != 50 || got.Share("one") != 100 || b.Served() != 50 {
		t.Errorf("50 requests: %+v, %v", got, err)
	}
	b.Stop()
	if got := Send(t.Context(), url, 3); got.Failed != 3 || got.Err() == nil {
		t.Errorf("3 requests to no server: %+v", got)
	}

	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	t.Cleanup(sick.Close)
	if got := Send(t.Context(), sick.URL, 2); got.Statuses[503] != 2 || got.Err() == nil {
		t.Errorf("2 requests to a sick server: %+v", got)
	}
}

func TestLoadCountsEveryRequest(t *testing.T) {
	b, err := StartBackend("one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	url := fmt.Sprintf("http://127.0.0.1:%d/", b.Port)
	if _, err := StartLoad(t.Context(), url, 1); err == nil {
		t.Error("a load without a deadline was started")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := StartLoad(ctx, url, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Until(ctx, "requests", func(context.Context) error {
		if b.Served() < 20 {
			return fmt.Errorf("%d so far", b.Served())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	first := l.Reset()
	rest := l.Stop()
	if n := int64(first.Sent + rest.Sent); n != b.Served() || first.Sent == 0 || first.Err() != nil {
		t.Errorf("counted %d of %d requests: %v", n, b.Served(), first.Err())
	}
}

// Every Envoy that starts with the bootstraps of this tree connects.
func TestBootstrapsAreValid(t *testing.T) {
	root, err := program.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "deploy", "envoy")
	istio, err := os.ReadFile(filepath.Join(dir, "istio-node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rigs, err := bootstrap(EnvoyConfig{Node: "n", Cluster: "c", XDS: []int{1, 2}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for path, overlay := range map[string]string{filepath.Join(dir, "sotw.yaml"): string(istio), rigs: ""} {
		if err := ValidateBootstrap(t.Context(), path, overlay); err != nil {
			t.Error(err)
		}
	}
	if err := ValidateBootstrap(t.Context(), filepath.Join(dir, "sotw.yaml"), "node: {nodes: x}"); err == nil {
		t.Error("Envoy accepts any bootstrap: this test proves nothing")
	}
}
