package e2e

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports demands that tests use only what users have: programs, xDS, and the
// output of the programs. deploy/testkit runs the API server that drives them. Its
// own import law demands that it shares no code with the programs.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "-tags", "faults", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, banned := range []string{"meshlog.dev/events", "meshlog.dev/store", "meshlog.dev/services", "meshlog.dev/proto"} {
		for _, dep := range strings.Fields(string(out)) {
			if dep == banned || strings.HasPrefix(dep, banned+"/") {
				t.Errorf("imports %s: a test of the programs must not share code with them", dep)
			}
		}
	}
}
