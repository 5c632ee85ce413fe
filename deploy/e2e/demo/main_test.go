package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

// TestMain gives all demos the network that main gives only the demo with
// Kubernetes.
func TestMain(m *testing.M) {
	if err := rig.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Every step of the demos succeeds.
func TestDemo(t *testing.T) {
	t.Parallel()
	holds(t, newStage, "What runs", "0/100", "PUT routes.yaml:2", "Everything dies", "what the file held before stays", "envoy-2 answers", "all from shop-v1")
}

func TestDemoKubernetes(t *testing.T) {
	t.Parallel()
	holds(t, newClusterStage, "What runs", "0/100", "by release-bot", "the new one answers", "DOWN, FROZEN", "all from shop-v1")
}

func TestDemoMesh(t *testing.T) {
	t.Parallel()
	holds(t, newSecureStage, "What runs", "called by spiffe://cluster.local/ns/web/sa/web", "replaced 5 times", "refuses connections without mutual TLS",
		"on the connection on which it was 200", "under a new root", "nobody was there", "the certificate of edge 6", "recorded on the bus", "the archive of the log and all versions: none")
}

func holds(t *testing.T, begin func(scene) play, says ...string) {
	var out strings.Builder
	if err := run(t.Context(), &printer{w: &out}, begin, false); err != nil {
		t.Fatalf("%v, after:\n%s", err, out.String())
	}
	for _, want := range says {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colours although the output is not a terminal:\n%s", out.String())
	}
}
