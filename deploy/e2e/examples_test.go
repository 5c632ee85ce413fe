package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// The configuration of the compose deployment has no problem but that its certificate is
// not there yet: clients without certificates are refused on purpose, and reported as such
// (MTLS-16), not as services that lack endpoints.
func TestComposeConfiguration(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	root, err := program.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := rig.Meshlog(ctx, "up", "--check", "--config", filepath.Join(root, "deploy", "compose", "mesh"), "--data", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "warning ") || strings.HasPrefix(line, "error ") {
			problems = append(problems, line)
		}
	}
	if len(problems) != 1 || !strings.Contains(problems[0], "there is no Secret store/edge") {
		t.Errorf("up --check says:\n%s\nwant one warning, about the Secret store/edge", strings.Join(problems, ""))
	}
}
