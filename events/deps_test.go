package events_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports checks the import law, which lists the packages that a package may
// not depend on, and why. Tests may import more.
func TestImports(t *testing.T) {
	const root = "meshlog.dev/events"
	bans := []struct {
		prefix string
		reason string
		except []string // packages that may depend on it
	}{
		{"meshlog.dev/store", "events and store meet in the builder only", nil},
		{"meshlog.dev/services", "the log does not depend on its users", nil},
		{"github.com/nats-io/nats-server", "a server is run by services/internal/bus; a client links none", nil},
		{"github.com/nats-io", "only natslog speaks NATS: the fold and every tool import events", []string{root + "/natslog"}},
		{"meshlog.dev/proto/jsapi", "only natslog speaks NATS: the fold and every tool import events", []string{root + "/natslog"}},
		{"github.com/synadia-io", "natslog speaks the three headers of a batch itself", nil},
		{"google.golang.org/grpc", "nothing here serves", nil},
		{"k8s.io", "client-go is linked into watcher-kube and the CLI only", nil},
		{"net/http", "nothing here serves", []string{root + "/natslog"}},
		{"testing", "no process carries test code", nil},
		{root + "/natslog", "drivers are named by programs, never by each other", []string{root + "/natslog"}},
		{root + "/memlog", "drivers are named by programs, never by each other", []string{root + "/memlog"}},
		{root + "/archive", "drivers are named by programs, never by each other", []string{root + "/archive"}},
	}
	for _, pkg := range goList(t, root+"/...") {
		for _, dep := range goList(t, "-deps", pkg) {
			for _, ban := range bans {
				if slices.Contains(ban.except, pkg) || dep != ban.prefix && !strings.HasPrefix(dep, ban.prefix+"/") {
					continue
				}
				t.Errorf("%s depends on %s: %s", pkg, dep, ban.reason)
			}
		}
	}
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %s: %v (it needs the go command in PATH)", strings.Join(args, " "), err)
	}
	return strings.Fields(string(out))
}
