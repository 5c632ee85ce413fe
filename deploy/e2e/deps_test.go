package e2e

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports holds that what is tested here is what users have: programs,
// xDS, and what the programs print. An API server to drive them with shares
// nothing with them: the services' import law holds that.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	const kubetest = "meshlog.dev/services/watcher/kube/kubetest"
	for _, banned := range []string{"meshlog.dev/events", "meshlog.dev/store", "meshlog.dev/services", "meshlog.dev/proto"} {
		for _, dep := range strings.Fields(string(out)) {
			if dep == kubetest {
				continue
			}
			if dep == banned || strings.HasPrefix(dep, banned+"/") {
				t.Errorf("imports %s: a test of the programs must not share code with them", dep)
			}
		}
	}
}
