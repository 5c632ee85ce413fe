package bolt

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"meshlog.dev/store"
)

// The file's lock is what counts; the owner file beside it is for people, to
// find the process that has it. One that is left over harms nothing, and one
// that cannot be written, as on a full disk, is done without.

func ownerPath(path string) string { return path + ".owner" }

func writeOwner(path string) {
	_ = os.WriteFile(ownerPath(path), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
}

func removeOwner(path string) { _ = os.Remove(ownerPath(path)) }

// lockedError names the owner, if it is known.
func lockedError(path string) error {
	b, err := os.ReadFile(ownerPath(path))
	if err != nil {
		return fmt.Errorf("%w: stop it first", store.ErrLocked)
	}
	return fmt.Errorf("%w (pid %s): stop it first", store.ErrLocked, strings.TrimSpace(string(b)))
}
