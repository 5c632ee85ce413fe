package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports holds that what is tested here is what users have: programs,
// xDS, and what the programs print. An API server to drive them with, and the
// ports for it, share nothing with them: the services' import law holds that.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	apart := []string{"meshlog.dev/services/watcher/kube/kubetest", "meshlog.dev/events/freeport"}
	for _, banned := range []string{"meshlog.dev/events", "meshlog.dev/store", "meshlog.dev/services", "meshlog.dev/proto"} {
		for _, dep := range strings.Fields(string(out)) {
			if slices.Contains(apart, dep) {
				continue
			}
			if dep == banned || strings.HasPrefix(dep, banned+"/") {
				t.Errorf("imports %s: a test of the programs must not share code with them", dep)
			}
		}
	}
}
