package suite

import (
	"context"
	"iter"
	"os"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/memlog"
)

// openArchive opens a log that appends in memory and reads from an archive.
func openArchive(t *testing.T) Driver {
	l := &copied{Log: memlog.New(time.Now), t: t}
	return Driver{
		Log:           l,
		AppendRaw:     func(s events.Subject, raw []byte) { l.Log.AppendRaw(s, raw) },
		AppendForeign: func(s events.Subject, raw []byte) { l.Log.AppendForeign(s, raw) },
		Trim:          l.Log.Trim,
	}
}

// copied is a log that appends in memory and reads from an archive.
type copied struct {
	*memlog.Log
	t *testing.T

	open   *archive.Archive
	bounds events.Bounds // of the records in open
	closed bool
}

// archive returns an archive of the whole log as it is now, or as it was when it was closed.
func (c *copied) archive() *archive.Archive {
	if c.closed {
		return c.open
	}
	bounds, err := c.Log.Bounds(context.Background())
	must(c.t, err)
	if c.open == nil || bounds != c.bounds {
		c.open, c.bounds = c.copy(bounds), bounds
	}
	return c.open
}

func (c *copied) copy(bounds events.Bounds) *archive.Archive {
	f, err := os.CreateTemp(c.t.TempDir(), "")
	must(c.t, err)
	defer f.Close()
	w, err := archive.NewWriter(f, bounds.First)
	must(c.t, err)
	for r, err := range c.Log.Raw(context.Background(), bounds.First, bounds.Last) {
		must(c.t, err)
		must(c.t, w.Append(r))
	}
	must(c.t, w.Close())
	a, err := archive.Open(context.Background(), f.Name())
	must(c.t, err)
	c.t.Cleanup(func() { a.Close() })
	return a
}

func (c *copied) Bounds(ctx context.Context) (events.Bounds, error) { return c.archive().Bounds(ctx) }

func (c *copied) Get(ctx context.Context, seq uint64) (events.Record, error) {
	return c.archive().Get(ctx, seq)
}

func (c *copied) Last(ctx context.Context, s events.Subject) (events.Record, error) {
	return c.archive().Last(ctx, s)
}

func (c *copied) Under(ctx context.Context, s events.Subject) iter.Seq2[events.Record, error] {
	return c.archive().Under(ctx, s)
}

func (c *copied) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return c.archive().Raw(ctx, first, last)
}

func (c *copied) Follow(ctx context.Context, after uint64, name string) (events.Follower, error) {
	return c.archive().Follow(ctx, after, name)
}

func (c *copied) Close() error {
	open := c.archive()
	c.closed = true
	return open.Close()
}
