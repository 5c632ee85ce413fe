package busauth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/services/internal/bus"
)

// TestSignedOperators looks at what the user of operators may publish if they sign: the
// sessions of watchers are not among it.
func TestSignedOperators(t *testing.T) {
	for _, signed := range []bool{false, true} {
		dir := t.TempDir()
		u := Users{Domain: "mesh", Roles: []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator()}, Signed: signed}
		if _, _, err := u.Write(dir); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, ConfigName))
		if err != nil {
			t.Fatal(err)
		}
		_, account, _ := strings.Cut(string(b), "  \"OPERATOR\" {")
		user, _, _ := strings.Cut(account, "exports: [")
		for subject, want := range map[string]bool{
			`"meshlog.ev.mesh.*.*._ctl"`:          !signed,
			`"meshlog.ev.mesh.api.*._ctl"`:        signed,
			`"meshlog.ev.mesh._operator.control"`: true,
			`"meshlog.ev.mesh._operator.overlay"`: true,
		} {
			if strings.Contains(user, subject) != want {
				t.Errorf("signed %v: the user may publish %s: %v, want %v", signed, subject, !want, want)
			}
		}
	}
}
