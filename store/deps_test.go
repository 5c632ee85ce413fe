package store_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImportLaw holds the import law. A ban covers direct and indirect imports;
// tests may import more.
func TestImportLaw(t *testing.T) {
	const module = "meshlog.dev/store"
	laws := []struct {
		ban    string
		except string // the package that may import it
		reason string
	}{
		{"meshlog.dev/events", "", "log and store meet in the builder only"},
		{"meshlog.dev/services", "", "a store does not depend on its users"},
		{"go.etcd.io/bbolt", module + "/bolt", "another file format must cost one package"},
		{"github.com/nats-io/nats.go", module + "/natsfeed", "another bus must cost one package"},
		{"github.com/nats-io/nats-server", "", "a server is started by processes and tests only"},
		{"meshlog.dev/proto/jsapi", module + "/natsfeed", "another bus must cost one package"},
		{"testing", "", "no process carries test code"},
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		packages++
		for _, law := range laws {
			if fields[0] == law.except {
				continue
			}
			for _, dep := range fields[1:] {
				if dep == law.ban || strings.HasPrefix(dep, law.ban+"/") {
					t.Errorf("%s imports %s: %s", fields[0], dep, law.reason)
				}
			}
		}
	}
	if packages < 6 {
		t.Errorf("only %d packages were looked at", packages)
	}
}
