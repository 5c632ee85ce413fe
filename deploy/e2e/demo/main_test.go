package main

import (
	"strings"
	"testing"
)

// Every step of the demo holds.
func TestDemo(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &printer{w: &out}, false); err != nil {
		t.Fatalf("%v, after:\n%s", err, out.String())
	}
	for _, want := range []string{"What runs", "0/100", "PUT routes.yaml:2", "Everything dies", "envoy-2 answers"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colours, and no terminal:\n%s", out.String())
	}
}
