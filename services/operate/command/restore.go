package command

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store/natsfeed"
)

// Restore makes the streams of a mesh on a bus, and restores an archive into
// them. The bus must not have a log.
func Restore(ctx context.Context, nc *bus.Conn, a *archive.Archive, domain string, replicas int, progress func(done, total int64)) error {
	if _, err := natsfeed.EnsureStreams(ctx, nc, natsfeed.StreamOptions{Replicas: replicas, MaxAge: streams.DefaultHistory}); err != nil {
		return err
	}
	chain, err := natsfeed.Open(ctx, nc, natsfeed.Options{Domain: domain})
	if err != nil {
		return err
	}
	log := streams.Log(domain, replicas, streams.DefaultHistory, streams.DefaultLogBytes)
	restore := func(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error {
		return natslog.Restore(ctx, nc, log, first, records)
	}
	err = past.Import(ctx, a, chain, restore, progress)
	if errors.Is(err, natslog.ErrExists) {
		return fmt.Errorf("the bus %w: a builder has made the log already; import before one is started: %w", past.ErrNotEmpty, err)
	}
	return err
}
