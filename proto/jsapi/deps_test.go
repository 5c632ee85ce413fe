package jsapi_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports checks that the package imports the NATS client and no other part
// of meshlog.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v (is go in PATH?)", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		if strings.HasPrefix(dep, "meshlog.dev/") && dep != "meshlog.dev/proto/jsapi" || strings.HasPrefix(dep, "github.com/nats-io/nats-server") {
			t.Errorf("jsapi imports %s: log, store and processes all import jsapi", dep)
		}
	}
}
