package testkit

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports holds that the tools of tests import nothing of what they test:
// deploy/e2e uses them and shares no code with the programs.
func TestImports(t *testing.T) {
	const module = "meshlog.dev/deploy/testkit"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v (is go in PATH?)", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		path, _, _ := strings.Cut(dep, ".test")
		if strings.HasPrefix(path, "meshlog.dev/") && path != module && !strings.HasPrefix(path, module+"/") && !strings.HasPrefix(path, module+"_test") {
			t.Errorf("imports %s: tools of tests share no code with what is tested", dep)
		}
	}
}
