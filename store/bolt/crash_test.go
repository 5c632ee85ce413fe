//go:build unix

package bolt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// committerEnv makes the test binary a process that commits to a file until it
// is killed.
const committerEnv = "MESHLOG_TEST_COMMIT_TO"

func TestMain(m *testing.M) {
	if path := os.Getenv(committerEnv); path != "" {
		if err := commitForever(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// commitForever prints each version once it is committed.
func commitForever(path string) error {
	ctx := context.Background()
	s, aside, err := bolt.Open(path, bolt.Options{Retention: store.Retention{Versions: 10}})
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
		fmt.Println(latest.Version())
	}
}

// numbered is what version 1.seq puts.
func numbered(seq uint64) store.Delta {
	var d store.Delta
	for i := range 50 {
		d.Put = append(d.Put, store.Row{Key: fmt.Sprintf("row%02d", i), Value: fmt.Appendf(nil, "%0100d", seq)})
	}
	return d
}

// A process is killed while it commits, again and again: what it said was
// committed is there, and whole.
func TestKilled(t *testing.T) {
	d := newDisk(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var last store.Version
	for round := range 8 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), committerEnv+"="+d.path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewScanner(out)
		for range 5 + round {
			if !said.Scan() {
				t.Fatalf("round %d: the process ended by itself: %v", round, cmd.Wait())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		line := said.Text()
		for said.Scan() {
			line = said.Text()
		}
		_ = cmd.Wait() // it was killed
		if last, err = store.ParseVersion(line); err != nil {
			t.Fatal(err)
		}

		s := d.Open(t, store.Retention{})
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

// The disk is full from a certain byte on, for each page in turn: the commit
// fails, what was there can be read, and once there is room again, commits go on.
func TestDiskFull(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	d := newDisk(t)
	file, _ := full(t, d)
	page := int64(os.Getpagesize())
	failed := 0
	for limit := page; limit < int64(len(file)); limit += page {
		d.write(t, file)
		s := d.Open(t, store.Retention{})
		before := dump(t, s)
		latest, err := s.Latest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next, c := version(latest, latest.Version().Seq+1, numbered(1))
		c.Side = numbered(2)

		restore := limitFiles(t, uint64(limit))
		err = s.Commit(t.Context(), latest.Version(), c)
		restore()

		if err != nil {
			failed++
			if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrCorrupt) {
				t.Errorf("limit %d: commit: %v", limit, err)
			}
			if got := dump(t, s); got != before {
				t.Errorf("limit %d: after a commit that failed the store says something else", limit)
			}
			if err := s.Commit(t.Context(), latest.Version(), c); err != nil {
				t.Errorf("limit %d: commit when there is room again: %v", limit, err)
			}
		}
		if got, err := s.Latest(t.Context()); err != nil || got.Version() != next.Version() {
			t.Errorf("limit %d: latest is %s, %v", limit, got.Version(), err)
		}
		after := dump(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = d.Open(t, store.Retention{})
		if got := dump(t, s); got != after {
			t.Errorf("limit %d: opened again, the store says something else", limit)
		}
		s.Close()
	}
	if failed < 10 {
		t.Errorf("only %d commits failed: the limit does not limit", failed)
	}
}

// limitFiles makes writes beyond a file's first n bytes fail, until restore.
func limitFiles(t *testing.T, n uint64) (restore func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// A copy can be read while the owner has the file, and after it was killed.
func TestOpenCopy(t *testing.T) {
	d := newDisk(t)
	s := d.Open(t, store.Retention{})
	fill(t, s, 3, 40)
	want := dump(t, s)
	c, err := bolt.OpenCopy(d.path)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 1, 40)
	if got := dump(t, c); got != want {
		t.Error("the copy says something else than the file at its time")
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

// A copy taken while the owner commits is whole.
func TestOpenCopyOfBusyFile(t *testing.T) {
	d := newDisk(t)
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
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if said := bufio.NewScanner(out); !said.Scan() {
		t.Fatal("the process ended by itself")
	}
	go io.Copy(io.Discard, out) // ends with the process
	for range 5 {
		c, err := bolt.OpenCopy(d.path)
		if err != nil {
			t.Fatal(err)
		}
		dump(t, c)
		c.Close()
	}
}
