package child_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"meshlog.dev/services/agent/child"
)

// AGT-1: as process 1 the agent reaps processes that lost their parents, and Wait still
// gets how its own ended. A process of the test is in the place of process 1.
func TestReap(t *testing.T) {
	if os.Getenv("MESHLOG_TEST_REAP") != "" {
		reap(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestReap$", "-test.v")
	cmd.Env = append(os.Environ(), "MESHLOG_TEST_REAP=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func reap(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- child.Reap(ctx) }()
	// The shell ends with 3 and leaves an orphan, which ends after it.
	p, err := child.Start(child.Command{Path: "/bin/sh", Args: []string{"-c", "sleep 0.2 & exit 3"}, UID: -1, GID: -1, Output: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("the process ended with %v", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); children(t) > 0; {
		if <-tick.C; time.Now().After(deadline) {
			t.Fatal("an orphan is not reaped")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// children returns how many children this process has, zombies included.
func children(t *testing.T) (n int) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		b, _ := os.ReadFile(f) // the thread may have ended
		n += len(strings.Fields(string(b)))
	}
	return n
}
