package bolt

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"meshlog.dev/store"
)

// The lock of the file excludes other processes. The owner file beside it only
// tells users which process holds the lock. A stale owner file is harmless, and
// Open ignores that it cannot be written, on a full disk for example.

func ownerPath(path string) string { return path + ".owner" }

func writeOwner(path string) {
	_ = os.WriteFile(ownerPath(path), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
}

func removeOwner(path string) { _ = os.Remove(ownerPath(path)) }

// lockedError names the owner if it is known.
func lockedError(path string) error {
	b, err := os.ReadFile(ownerPath(path))
	if err != nil {
		return fmt.Errorf("%w: stop it first", store.ErrLocked)
	}
	return fmt.Errorf("%w (pid %s): stop it first", store.ErrLocked, strings.TrimSpace(string(b)))
}
