//go:build unix

package bolt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// With committerEnv set, the test binary commits to the file that the variable
// names until it is killed. With fullDiskEnv set, it commits to that file while
// the disk is full.
const (
	committerEnv = "MESHLOG_TEST_COMMIT_TO"
	fullDiskEnv  = "MESHLOG_TEST_FULL_DISK"
)

func TestMain(m *testing.M) {
	run := func(path string, f func(path string) error) {
		if path == "" {
			return
		}
		if err := f(path); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	run(os.Getenv(committerEnv), commitForever)
	run(os.Getenv(fullDiskEnv), commitToFullDisk)
	os.Exit(m.Run())
}

// commitForever commits versions and prints each one.
func commitForever(path string) error {
	ctx := context.Background()
	s, aside, err := bolt.Open(path, store.Retention{Versions: 10})
	if err != nil || aside != nil {
		return fmt.Errorf("open: %w, set aside: %v", err, aside)
	}
	latest, err := s.Latest(ctx)
	if err != nil && !errors.Is(err, store.ErrEmpty) {
		return err
	}
	for {
		seq := latest.Version().Seq + 1
		next, c := version(latest, seq, numbered(seq))
		c.Side = store.Delta{Put: []store.Row{{Key: "cursor", Value: fmt.Append(nil, seq)}}}
		if err := s.Commit(ctx, latest.Version(), c); err != nil {
			return err
		}
		latest = next
		fmt.Fprintln(os.Stdout, latest.Version())
	}
}

// numbered returns the rows of version 1.seq.
func numbered(seq uint64) store.Delta {
	var d store.Delta
	for i := range 50 {
		d.Put = append(d.Put, store.Row{Key: fmt.Sprintf("row%02d", i), Value: fmt.Appendf(nil, "%0100d", seq)})
	}
	return d
}

// startCommitter starts a process that commits to d and prints each version.
func startCommitter(t *testing.T, d disk) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), committerEnv+"="+d.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// A committing process is killed again and again. The store has all versions that
// the process printed.
func TestKilled(t *testing.T) {
	d := newDisk(t)
	for round := range 8 {
		cmd, lines := startCommitter(t, d)
		for range 5 + round {
			if !lines.Scan() {
				t.Fatalf("round %d: the process ended by itself: %v", round, cmd.Wait())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		line := lines.Text()
		for lines.Scan() {
			line = lines.Text()
		}
		_ = cmd.Wait() // it was killed
		last, err := ident.ParsePosition(line)
		if err != nil {
			t.Fatal(err)
		}

		s := d.open(t, store.Retention{})
		latest, err := s.Latest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v := latest.Version(); v.Less(last) || v.Seq > last.Seq+1 {
			t.Errorf("round %d: %s was committed, the file has %s", round, last, v)
		}
		want := (*store.Snapshot)(nil).With(numbered(latest.Version().Seq))
		if latest.Snapshot.Root() != want.Root() {
			t.Errorf("round %d: version %s has the content of another one", round, latest.Version())
		}
		for row, err := range s.Side(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if string(row.Value) != fmt.Sprint(latest.Version().Seq) {
				t.Errorf("round %d: the side table is of %s, the version is %s", round, row.Value, latest.Version())
			}
		}
		dump(t, s)
		s.Close()
	}
}

// For each page in turn, the file cannot grow beyond that page: the commit fails,
// the earlier versions can be read, and commits succeed again when there is room.
// Each case runs in a process of its own, because the limit applies to a process.
func TestDiskFull(t *testing.T) {
	d := newDisk(t)
	full(t, d)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fullDiskEnv+"="+d.path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func commitToFullDisk(path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, failed := os.Getpagesize(), 0
	for limit := page; limit < len(file); limit += page {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			return err
		}
		full, err := commitWithLimit(path, uint64(limit))
		if err != nil {
			return fmt.Errorf("full from byte %d on: %w", limit, err)
		}
		if full {
			failed++
		}
	}
	if failed < 10 {
		return fmt.Errorf("only %d commits failed: the limit does not limit", failed)
	}
	return nil
}

// commitWithLimit commits under a limit on the file's size, reports whether that
// failed, and commits again without the limit.
func commitWithLimit(path string, limit uint64) (failed bool, err error) {
	ctx := context.Background()
	s, _, err := bolt.Open(path, store.Retention{})
	if err != nil {
		return false, err
	}
	before, err := said(ctx, s)
	if err != nil {
		return false, err
	}
	latest, err := s.Latest(ctx)
	if err != nil {
		return false, err
	}
	next, c := version(latest, latest.Version().Seq+1, numbered(1))
	c.Side = numbered(2)

	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		return false, err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: was.Max}); err != nil {
		return false, err
	}
	failure := s.Commit(ctx, latest.Version(), c)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		return false, err
	}

	if failure != nil {
		if !errors.Is(failure, syscall.EFBIG) && !strings.Contains(failure.Error(), syscall.EFBIG.Error()) {
			return false, fmt.Errorf("commit: %w, want an error about the size of the file", failure)
		}
		if got, err := said(ctx, s); err != nil || got != before {
			return false, fmt.Errorf("the store returns something else after the failed commit: %w", err)
		}
		if err := s.Commit(ctx, latest.Version(), c); err != nil {
			return false, fmt.Errorf("commit when there is room again: %w", err)
		}
	}
	after, err := said(ctx, s)
	if err != nil {
		return false, err
	}
	if err := s.Close(); err != nil {
		return false, err
	}
	s, aside, err := bolt.Open(path, store.Retention{})
	if err != nil || aside != nil {
		return false, fmt.Errorf("open again: set aside %v, %w", aside, err)
	}
	defer s.Close()
	if got, err := s.Latest(ctx); err != nil || got.Version() != next.Version() {
		return false, fmt.Errorf("latest is %s: %w", got.Version(), err)
	}
	if got, err := said(ctx, s); err != nil || got != after {
		return false, fmt.Errorf("the reopened store returns something else: %w", err)
	}
	return failure != nil, nil
}

// A copy can be read while the owner uses the file, and after it was killed.
func TestOpenCopy(t *testing.T) {
	d := newDisk(t)
	s := d.open(t, store.Retention{})
	fill(t, s, 3, 40)
	want := dump(t, s)
	c, err := bolt.OpenCopy(d.path)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 1, 40)
	if got := dump(t, c); got != want {
		t.Error("the copy returns something else than the file did when it was copied")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if c, err = bolt.OpenCopy(d.path); err != nil {
		t.Fatal(err)
	}
	dump(t, c)
	c.Close()

	d.write(t, []byte("no database"))
	if _, err := bolt.OpenCopy(d.path); err == nil || !strings.Contains(err.Error(), d.path) {
		t.Errorf("copy of a damaged file: %v", err)
	}
	if b := d.read(t); string(b) != "no database" {
		t.Error("the damaged file was touched")
	}
	if _, err := bolt.OpenCopy(d.path + ".no"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("copy of a file that is not there: %v", err)
	}
}

// A copy made while the owner commits is whole.
func TestOpenCopyOfBusyFile(t *testing.T) {
	d := newDisk(t)
	cmd, lines := startCommitter(t, d)
	if !lines.Scan() {
		t.Fatal("the process ended by itself")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for lines.Scan() { // keeps the process from blocking on a full pipe
		}
	})
	for range 5 {
		c, err := bolt.OpenCopy(d.path)
		if err != nil {
			t.Error(err)
			break
		}
		dump(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	_ = cmd.Wait() // it was killed
}
