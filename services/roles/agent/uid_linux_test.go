//go:build faults

package agent_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// AGT-1, AGT-3: with --envoy-uid, Envoy runs as that user and gets its certificate over the
// socket, which no other user can open.
func TestEnvoyUID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can start Envoy as another user: run this test as root")
	}
	m := newMesh(t)
	s := m.settings()
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.MkdirAll(open, 0o755))
	for dir := open; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // the other user gets there
		must(t, os.Chmod(dir, 0o755))
	}
	s.Envoy = copyFile(t, s.Envoy, filepath.Join(open, "envoy"))
	must(t, os.Chmod(s.Dir, 0o755))
	s.Dir = filepath.Join(s.Dir, "run") // the agent makes it
	const uid = 1337
	s.EnvoyUID = uid
	r := m.agent(s)
	m.until("ready", r.ready)

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid(0)))
	must(t, err)
	for _, id := range []string{"Uid", "Gid"} {
		if want := fmt.Sprintf("%s:\t%d\t%d\t%d\t%d\n", id, uid, uid, uid, uid); !strings.Contains(string(status), want) {
			t.Errorf("Envoy runs as another user: want %q in\n%s", want, status)
		}
	}
	info, err := os.Stat(filepath.Join(s.Dir, "sds.sock"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %o", info.Mode().Perm())
	}
	if err := dialAs(uid, s.Dir); err != nil {
		t.Errorf("Envoy's user gets no answer: %v", err)
	}
	if err := dialAs(uid+1, s.Dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another user: %v", err)
	}
}

// dialAs connects to the socket as another user, and waits for the first byte.
func dialAs(uid int, dir string) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends, with its user
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			failed <- errno
			return
		}
		conn, err := dial(dir)
		if err != nil {
			failed <- err
			return
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
		failed <- err
	}()
	return <-failed
}

// copyFile copies a program, and returns where to.
func copyFile(t *testing.T, from, to string) string {
	t.Helper()
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, errors.Join(err, out.Close()))
	return to
}
