package bolt_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// disk is a file.
type disk struct{ path string }

func newDisk(t *testing.T) disk { return disk{filepath.Join(t.TempDir(), "store.db")} }

func (d disk) open(t *testing.T, r store.Retention) store.Store {
	t.Helper()
	s, discarded, err := bolt.Open(d.path, r)
	if err != nil {
		t.Fatal(err)
	}
	if discarded != nil {
		t.Fatal(discarded)
	}
	return s
}

func (d disk) read(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(d.path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (d disk) write(t *testing.T, b []byte) {
	t.Helper()
	if err := os.WriteFile(d.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// version makes version 1.seq, which puts and removes rows after prev.
func version(prev store.Stored, seq uint64, d store.Delta) (store.Stored, store.Commit) {
	s := prev.Snapshot.With(d)
	root, was := s.Root(), prev.Snapshot.Root()
	m := &store.Manifest{
		Version:    store.VersionProto(ident.Position{Epoch: 1, Seq: seq}),
		RecordTime: timestamppb.New(time.Unix(int64(seq), 0)),
		Root:       root[:],
	}
	if prev.Manifest != nil {
		m.Previous, m.PreviousRoot = store.VersionProto(prev.Version()), was[:]
	}
	next := store.Stored{Manifest: m, Snapshot: s}
	return next, store.Commit{Manifest: m, Snapshot: s, Delta: store.Diff(prev.Snapshot, s)}
}

// fill commits n versions of rows random rows each.
func fill(t testing.TB, s store.Store, n, rows int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	latest, err := s.Latest(t.Context())
	if err != nil && !errors.Is(err, store.ErrEmpty) {
		t.Fatal(err)
	}
	for range n {
		seq := latest.Version().Seq + 1
		var c store.Commit
		prev := latest.Version()
		latest, c = version(latest, seq, randomRows(rnd, rows))
		c.Side = randomRows(rnd, rows)
		if err := s.Commit(t.Context(), prev, c); err != nil {
			t.Fatal(err)
		}
	}
}

func randomRows(rnd *rand.Rand, n int) store.Delta {
	s := (*store.Snapshot)(nil)
	for range n {
		row := store.Row{Key: fmt.Sprintf("v/file/demo/Resource/default/%06d", rnd.IntN(10*n)), Value: fmt.Appendf(nil, "%060d", rnd.IntN(1000))}
		s = s.With(store.Delta{Put: []store.Row{row}})
	}
	return store.Diff(nil, s)
}

// dump returns the hash of said, and fails the test on an error.
func dump(t *testing.T, s store.Reader) string {
	t.Helper()
	sum, err := said(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// said returns a hash of everything that a store returns.
func said(ctx context.Context, s store.Reader) (string, error) {
	h := sha256.New()
	for m, err := range s.Manifests(ctx) {
		if err != nil {
			return "", err
		}
		v, err := s.At(ctx, store.VersionOf(m.GetVersion()))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, v.Version(), v.Snapshot.Len(), v.Snapshot.Root())
		b, err := store.EncodeManifest(v.Manifest)
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	for row, err := range s.Side(ctx) {
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %q\n", row.Key, row.Value)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// full makes a file with trees of two levels. It returns the bytes in use, and
// the hash of the store before and after the last change.
func full(t *testing.T, d disk) (file []byte, says []string) {
	t.Helper()
	s := d.open(t, store.Retention{})
	fill(t, s, 4, 60)
	says = append(says, dump(t, s))
	fill(t, s, 1, 5)
	says = append(says, dump(t, s))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(d.path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var used int64
	if err := db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	return d.read(t)[:used], says
}

// openDamaged opens a file that may be damaged: Open must set it aside, or the
// store must return the same as before.
func openDamaged(t *testing.T, d disk, says []string) (discarded bool) {
	t.Helper()
	s, aside, err := bolt.Open(d.path, store.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := dump(t, s)
	if aside == nil {
		if got != says[0] && got != says[1] {
			t.Fatal("Open accepted the file, and the store returns something else than before")
		}
		return false
	}
	if _, err := s.Latest(t.Context()); !errors.Is(err, store.ErrEmpty) {
		t.Fatalf("the damaged file was set aside, and the new file is not empty: %v", err)
	}
	if aside.Reason == nil || aside.Path == d.path {
		t.Fatalf("set aside as %s for %v", aside.Path, aside.Reason)
	}
	if _, err := os.Stat(aside.Path); err != nil {
		t.Fatal(err)
	}
	return true
}

// A bit flips in every page in turn, in several places of each.
func TestFlippedBit(t *testing.T) {
	d := newDisk(t)
	file, says := full(t, d)
	rnd := rand.New(rand.NewPCG(3, 4))
	page := os.Getpagesize()
	set, all := 0, 0
	for p := 0; p*page < len(file); p++ {
		at := []int{0, 8, 10, 12, 16, 20, 24, 28} // header and first element
		for range 4 {
			at = append(at, rnd.IntN(page))
		}
		for _, i := range at {
			bad := bytes.Clone(file)
			bad[p*page+i] ^= 1 << rnd.IntN(8)
			d.write(t, bad)
			all++
			if openDamaged(t, d, says) {
				set++
			}
		}
	}
	t.Logf("%d of %d flips were detected, the others changed nothing", set, all)
	if set < all/3 {
		t.Errorf("only %d of %d flips were detected: most pages of the file must be free", set, all)
	}
}

func TestTruncated(t *testing.T) {
	d := newDisk(t)
	file, says := full(t, d)
	page := os.Getpagesize()
	for size := page; size < len(file); size += page {
		for _, size := range []int{size - 1, size, size + page/2} {
			d.write(t, file[:size])
			if !openDamaged(t, d, says) && size < len(file)/2 {
				t.Fatalf("Open accepted a file of %d bytes that was cut to %d", len(file), size)
			}
		}
	}
}

func TestNoStore(t *testing.T) {
	other := func(t *testing.T, path string) {
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err }); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T, path string)
		want string // part of the reason; empty: Open keeps the file
	}{
		{"text", func(t *testing.T, path string) { disk{path}.write(t, bytes.Repeat([]byte("no database\n"), 9999)) }, "invalid database"},
		{"short text", func(t *testing.T, path string) { disk{path}.write(t, []byte("no")) }, "invalid database"},
		{"zeros", func(t *testing.T, path string) { disk{path}.write(t, make([]byte, 1<<16)) }, "invalid database"},
		{"another's database", other, "it is not a store"},
		{"empty", func(t *testing.T, path string) { disk{path}.write(t, nil) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDisk(t)
			tt.make(t, d.path)
			s, aside, err := bolt.Open(d.path, store.Retention{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			switch {
			case tt.want == "" && aside != nil:
				t.Errorf("an empty file was set aside: %v", aside)
			case tt.want != "" && (aside == nil || !strings.Contains(aside.String(), tt.want)):
				t.Errorf("set aside: %v, want %q in it", aside, tt.want)
			}
			fill(t, s, 1, 3)
		})
	}
}

// Open sets no file aside because of an error of the operating system.
func TestOpenFails(t *testing.T) {
	d := newDisk(t)
	if err := os.Mkdir(d.path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, aside, err := bolt.Open(d.path, store.Retention{}); err == nil || aside != nil || !strings.Contains(err.Error(), d.path) {
		t.Errorf("open of a directory: %v, set aside %v", err, aside)
	}
	missing := filepath.Join(t.TempDir(), "no", "store.db")
	if _, _, err := bolt.Open(missing, store.Retention{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open in a directory that is not there: %v", err)
	}
}

func TestLocked(t *testing.T) {
	d := newDisk(t)
	s := d.open(t, store.Retention{})
	_, _, err := bolt.Open(d.path, store.Retention{})
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), d.path) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("open of a file that is open: %v; want ErrLocked with the file and the pid", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d.open(t, store.Retention{}).Close()
}

// The file becomes shorter while it is open: the store stops reading and writing
// it, returns the latest version from memory, and releases the lock.
func TestTruncatedWhileOpen(t *testing.T) {
	d := newDisk(t)
	full(t, d)
	s := d.open(t, store.Retention{})
	latest, err := s.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.path, 2*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if _, err := s.At(t.Context(), ident.Position{Epoch: 1, Seq: 1}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("at: %v, want ErrCorrupt", err)
	}
	_, c := version(latest, latest.Version().Seq+1, store.Delta{Remove: []string{"x"}})
	if err := s.Commit(t.Context(), latest.Version(), c); err == nil {
		t.Error("commit to a file that was cut off succeeded")
	}
	if got, err := s.Latest(t.Context()); err != nil || got.Snapshot != latest.Snapshot {
		t.Errorf("latest: %v, %v", got.Version(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, aside, err := bolt.Open(d.path, store.Retention{})
	if err != nil || aside == nil {
		t.Fatalf("open again: set aside %v, %v", aside, err)
	}
	s.Close()
}

// The same, but a commit is the first call that detects the truncation.
func TestTruncatedBeforeCommit(t *testing.T) {
	d := newDisk(t)
	full(t, d)
	s := d.open(t, store.Retention{})
	latest, err := s.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.path, 2*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, c := version(latest, latest.Version().Seq+1, store.Delta{Put: []store.Row{{Key: "x"}}})
		if err := s.Commit(t.Context(), latest.Version(), c); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("commit: %v, want ErrCorrupt", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
