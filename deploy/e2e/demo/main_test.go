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

// holds demands that every step of a demo succeeds, and that it prints some texts.
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
