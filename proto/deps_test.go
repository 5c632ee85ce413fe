package proto_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports checks that any program can read the messages on the wire: their
// package imports nothing but protobuf.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		domain, _, _ := strings.Cut(dep, "/")
		if strings.Contains(domain, ".") && !strings.HasPrefix(dep, "google.golang.org/protobuf/") && !strings.HasPrefix(dep, "meshlog.dev/proto") {
			t.Errorf("imports %s: every client of these messages would have to", dep)
		}
	}
}
