package logcopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

var begin = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// record returns a record of some bytes, an hour after the one before.
func record(seq uint64, subject events.Subject, size int) events.Raw {
	return events.Raw{Seq: seq, Time: begin.Add(time.Duration(seq) * time.Hour), Subject: subject, Data: bytes.Repeat([]byte{byte(seq)}, size)}
}

func opened(t *testing.T, path string, l Limits) *Copy {
	t.Helper()
	c, damage, err := Open(path, l)
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	return c
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A copy answers as the log does, and after it was opened again.
func TestCopy(t *testing.T) {
	path, ctx := filepath.Join(t.TempDir(), "log.db"), t.Context()
	c := opened(t, path, Limits{})
	must(t, c.Reset(5))
	refused := record(7, "file.default.Gateway.y", 3)
	refused.Refused = "no publisher of ours"
	want := []events.Raw{record(5, "file.default.Gateway.x", 10), record(6, "file.default.Gateway.xy", 0), refused, record(8, "file.default.Gateway.x", 700_000), record(9, "z", 700_000)}
	must(t, c.Append(ctx, want))
	if err := c.Append(ctx, []events.Raw{record(11, "x", 1)}); !errors.Is(err, events.ErrGap) {
		t.Errorf("a record is missing: %v", err)
	}
	h, err := c.PutBlob(ctx, []byte("blob"))
	must(t, err, c.SetNodes([]byte("nodes")), c.Close())

	c = opened(t, path, Limits{})
	defer c.Close()
	if b, err := c.Bounds(ctx); err != nil || b != (events.Bounds{First: 5, Last: 9}) {
		t.Errorf("bounds %+v, %v", b, err)
	}
	var got []events.Raw
	for r, err := range c.Raw(ctx, 5, 9) {
		must(t, err)
		got = append(got, r)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b events.Raw) bool {
		return a.Seq == b.Seq && a.Time.Equal(b.Time) && a.Subject == b.Subject && a.Refused == b.Refused && bytes.Equal(a.Data, b.Data)
	})); diff != "" {
		t.Error(diff)
	}
	var found []uint64
	for r, err := range c.Find(ctx, "z", "file.default.Gateway.x") {
		must(t, err)
		found = append(found, r.Seq)
	}
	if diff := cmp.Diff([]uint64{5, 8, 9}, found); diff != "" {
		t.Error(diff)
	}
	if r, err := c.Last(ctx, "file.default.Gateway.x"); err != nil || r.Seq != 8 {
		t.Errorf("last is %d, %v", r.Seq, err)
	}
	if r, err := c.Last(ctx, "z"); err != nil || r.Seq != 9 || r.Hash != events.RecordHash(want[4].Data, want[4].Time) {
		t.Errorf("last of all is %d, %v", r.Seq, err)
	}
	if _, err := c.Last(ctx, "file.default.Gateway"); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("last of a subject without records: %v", err)
	}
	for r, err := range c.Raw(ctx, 4, 6) {
		if !errors.Is(err, events.ErrGap) {
			t.Errorf("record %d: %v", r.Seq, err)
		}
	}
	if b, err := c.GetBlob(ctx, h); err != nil || string(b) != "blob" {
		t.Errorf("blob %q, %v", b, err)
	}
	must(t, c.KeepBlobs(map[ident.Hash]bool{}))
	if _, err := c.GetBlob(ctx, h); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a removed blob: %v", err)
	}
	if b, err := c.Nodes(); err != nil || string(b) != "nodes" {
		t.Errorf("nodes %q, %v", b, err)
	}
}

// The oldest records go when there are too many bytes, or they are too old; the newest stays.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		first  uint64
	}{
		"bytes":        {Limits{Bytes: 3500}, 18},
		"age":          {Limits{Age: 5 * time.Hour}, 15},
		"one too many": {Limits{Bytes: 10}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			l := opened(t, filepath.Join(t.TempDir(), "log.db"), c.limits)
			defer l.Close()
			for seq := uint64(1); seq <= 20; seq++ {
				must(t, l.Append(t.Context(), []events.Raw{record(seq, "x", 1000)}))
			}
			if b, _ := l.Bounds(t.Context()); b != (events.Bounds{First: c.first, Last: 20}) {
				t.Errorf("bounds %+v, want from %d on", b, c.first)
			}
			n := 0
			for _, err := range l.Under(t.Context(), "x") {
				must(t, err)
				n++
			}
			if n != int(20-c.first+1) || c.limits.Bytes > 1000 && l.Size() > c.limits.Bytes {
				t.Errorf("%d records of %d bytes", n, l.Size())
			}
		})
	}
}

// A damaged file is set aside; a changed record is an error, and no record.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.db")
	c := opened(t, path, Limits{})
	for seq := uint64(1); seq <= 100; seq++ {
		must(t, c.Append(t.Context(), []events.Raw{record(seq, events.Subject(fmt.Sprint("s", seq)), 100)}))
	}
	must(t, c.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	changed := bytes.ReplaceAll(b, bytes.Repeat([]byte{7}, 100), bytes.Repeat([]byte{8}, 100))
	must(t, os.WriteFile(path, changed, 0o600))
	c = opened(t, path, Limits{})
	if _, err := c.Get(t.Context(), 7); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a changed record: %v", err)
	}
	must(t, c.Close(), os.WriteFile(path, b[:len(b)/4], 0o600))
	c, damage, err := Open(path, Limits{})
	must(t, err)
	defer c.Close()
	if bounds, _ := c.Bounds(t.Context()); damage == nil || bounds.Last != 0 {
		t.Errorf("damage %v, bounds %+v", damage, bounds)
	}
	if _, err := os.Stat(path + discardedSuffix); err != nil {
		t.Error(err)
	}
}

// Wait returns when the record is there.
func TestWait(t *testing.T) {
	c := opened(t, filepath.Join(t.TempDir(), "log.db"), Limits{})
	defer c.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait(t.Context(), 2) }()
	must(t, c.Append(t.Context(), []events.Raw{record(1, "x", 1)}), c.Append(t.Context(), []events.Raw{record(2, "x", 1)}), <-ended)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Wait(ctx, 3); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
