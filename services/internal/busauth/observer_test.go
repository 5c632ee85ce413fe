package busauth

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"meshlog.dev/services/internal/bus"
)

// The account of an optional role is new to servers that run, so they load the file twice; and it
// stays, without a user, when the role goes: some servers do not find one that comes back.
func TestOptionalRolesStay(t *testing.T) {
	for _, r := range optional {
		t.Run(r.String(), func(t *testing.T) { testOptionalRole(t, r) })
	}
}

func testOptionalRole(t *testing.T, role bus.Role) {
	dir := t.TempDir()
	write := func(of ...bus.Role) (state, config string) {
		t.Helper()
		files, err := WriteUsers(dir, "mesh", of)
		must(t, err)
		b, err := os.ReadFile(filepath.Join(dir, ConfigName))
		must(t, err)
		return files[0].State, string(b)
	}
	if _, config := write(roles...); strings.Contains(config, accountName(role)) {
		t.Error("there is an account of the role, which is not among the roles")
	}
	with := append(roles[:len(roles):len(roles)], role)
	state, config := write(with...)
	if state != stateExtended || strings.Count(config, "nkey:") != len(with)+1 {
		t.Errorf("with the role the file is %s", state)
	}
	if state, _ := write(with...); state != StateKept {
		t.Errorf("a second time the file is %s", state)
	}
	state, config = write(roles...)
	if state != stateChanged || !strings.Contains(config, strconv.Quote(accountName(role))+" {") || strings.Count(config, "nkey:") != len(roles)+1 {
		t.Errorf("without the role the file is %s", state)
	}
	if state, _ := write(with...); state != stateChanged {
		t.Errorf("when it is back the file is %s", state)
	}
}
