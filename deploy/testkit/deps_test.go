package testkit

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports checks that test tools do not import the code under test:
// deploy/e2e uses them and must share no code with the programs.
func TestImports(t *testing.T) {
	const module = "meshlog.dev/deploy/testkit"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v (is go in PATH?)", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		path, _, _ := strings.Cut(dep, ".test")
		if strings.HasPrefix(path, "meshlog.dev/") && path != module && !strings.HasPrefix(path, module+"/") && !strings.HasPrefix(path, module+"_test") {
			t.Errorf("imports %s: test tools must not share code with the programs under test", dep)
		}
	}
}
