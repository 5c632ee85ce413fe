package e2e

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports holds that what is tested here is what users have: programs, xDS,
// and what the programs print. deploy/testkit, which runs an API server to drive
// them with, shares no code with them: its own import law holds that.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./...").Output()
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
