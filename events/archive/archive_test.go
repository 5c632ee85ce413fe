package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
)

// write makes an archive of a log, with files, and returns its path.
func write(t *testing.T, l *memlog.Log, files map[string][]byte) string {
	t.Helper()
	var b bytes.Buffer
	bounds, err := l.Bounds(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.NewWriter(&b, bounds.First)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range l.Raw(context.Background(), bounds.First, bounds.Last) {
		if err == nil {
			err = w.Append(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.Put(name, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Size() != uint64(b.Len()) {
		t.Fatalf("size is %d, %d bytes were written", w.Size(), b.Len())
	}
	return file(t, b.Bytes())
}

func file(t *testing.T, b []byte) string {
	t.Helper()
	return rewrite(t, filepath.Join(t.TempDir(), "archive"), b)
}

func rewrite(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *archive.Archive {
	t.Helper()
	a, err := archive.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// sample returns a log of n records on several subjects, and the path of an
// archive of it with three files.
func sample(t *testing.T, n int) (*memlog.Log, string) {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	l := memlog.New(func() time.Time { now = now.Add(time.Millisecond); return now })
	for i := range n {
		_, err := l.Append(t.Context(), []events.Event{{
			ID:   fmt.Sprint("begin-", i),
			Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: fmt.Sprint(i % 3)}, Session: fmt.Sprint(i), Holder: "h"},
		}}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return l, write(t, l, files)
}

var files = map[string][]byte{"a/1": bytes.Repeat([]byte("one"), 1000), "a/2": {}, "b": []byte("two")}

func TestFiles(t *testing.T) {
	_, path := sample(t, 3)
	a := open(t, path)
	for name, want := range files {
		if got, err := a.File(t.Context(), name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("file %s = %d bytes, %v", name, len(got), err)
		}
	}
	if got := a.Files("a/"); !slices.Equal(got, []string{"a/1", "a/2"}) {
		t.Errorf("files a/ = %v", got)
	}
	if _, err := a.File(t.Context(), "a/3"); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.File(t.Context(), "b"); !errors.Is(err, events.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Equal logs give equal bytes.
func TestDeterministic(t *testing.T) {
	_, one := sample(t, 2000)
	_, other := sample(t, 2000)
	a, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("two archives of the same log differ: %d and %d bytes", len(a), len(b))
	}
}

func TestWriterRefuses(t *testing.T) {
	if _, err := archive.NewWriter(new(bytes.Buffer), 0); err == nil {
		t.Error("a log that begins at record 0 was accepted")
	}
	w, err := archive.NewWriter(new(bytes.Buffer), 7)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(events.Raw{Seq: 8}); err == nil {
		t.Error("a gap was accepted")
	}
	if err := w.Put("x", nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Put("x", nil); err == nil {
		t.Error("a name was accepted twice")
	}
	if _, err := archive.NewWriter(fullDisk{}, 1); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}

type fullDisk struct{}

var errFull = errors.New("no space left")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// Open refuses an archive that is cut off at any byte.
func TestCutOff(t *testing.T) {
	_, path := sample(t, 40)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = file(t, nil)
	for n := range whole {
		if _, err := archive.Open(t.Context(), rewrite(t, path, whole[:n])); !errors.Is(err, archive.ErrDamaged) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// Open refuses an archive in which any one bit is flipped.
func TestFlips(t *testing.T) {
	_, path := sample(t, 40)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = file(t, nil)
	for i := range whole {
		for _, bit := range []byte{0x01, 0x80} {
			b := bytes.Clone(whole)
			b[i] ^= bit
			_, err := archive.Open(t.Context(), rewrite(t, path, b))
			if !errors.Is(err, archive.ErrDamaged) && !errors.Is(err, archive.ErrFormat) {
				t.Fatalf("byte %d of %d with bit %#x flipped: %v", i, len(whole), bit, err)
			}
		}
	}
	longer := append(bytes.Clone(whole), 0)
	if _, err := archive.Open(t.Context(), file(t, longer)); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("one byte more: %v", err)
	}
}

// A read finds bytes that changed after Open.
func TestDamagedWhileOpen(t *testing.T) {
	_, path := sample(t, 40)
	a := open(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("xxxx"), 30); err != nil {
		t.Fatal(err)
	}
	if _, err := a.File(t.Context(), "a/1"); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("file: %v", err)
	}
}

func TestNoArchive(t *testing.T) {
	for _, c := range []struct {
		name, content, want string
		is                  error
	}{
		{"another file", "apiVersion: v1\nkind: Service\n", "`meshlog export` did not write it", archive.ErrFormat},
		{"a newer format", "meshlog-archive 2\n...", `its format is "2", this build reads 1`, archive.ErrFormat},
		{"nothing", "", "it is empty", archive.ErrDamaged},
	} {
		_, err := archive.Open(t.Context(), file(t, []byte(c.content)))
		if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := archive.Open(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := archive.Open(t.Context(), t.TempDir()); !errors.Is(err, archive.ErrFormat) {
		t.Errorf("a directory: %v", err)
	}
}

// Find yields the records under subjects, those that a filter over all records has.
func TestFind(t *testing.T) {
	l, path := sample(t, 5000)
	a := open(t, path)
	for _, subjects := range [][]events.Subject{{"s.1._ctl"}, {"s.0._ctl", "s.2._ctl"}, {"none"}, {"s.1._ctl", "s.0._ctl", "s.2._ctl"}} {
		var want, got []uint64
		for r, err := range l.Raw(t.Context(), 1, 5000) {
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(subjects, r.Subject) {
				want = append(want, r.Seq)
			}
		}
		for r, err := range a.Find(t.Context(), subjects...) {
			if err != nil {
				t.Fatal(err)
			}
			if at, err := l.Get(t.Context(), r.Seq); err != nil || r.Record().Event.ID != at.Event.ID || !r.Time.Equal(at.Time) {
				t.Fatalf("record %d is %v, want %v, %v", r.Seq, r, at, err)
			}
			got = append(got, r.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("under %v: %d records, want %d", subjects, len(got), len(want))
		}
		for r, err := range a.Find(t.Context(), subjects...) { // the caller may stop
			if err != nil || !slices.Contains(subjects, r.Subject) {
				t.Errorf("record %d, %v", r.Seq, err)
			}
			break
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range a.Find(t.Context(), "s.1._ctl") {
		if !errors.Is(err, events.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}
