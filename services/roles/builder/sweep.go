package builder

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store/natsfeed"
)

// sweepShare is how many times blobs are swept within the history.
const sweepShare = 8

// sweeper deletes blobs that no version and no segment names any more, while its
// builder leads. Two leaders do no harm.
type sweeper struct {
	log     *natslog.Log
	chain   *natsfeed.Feed
	history time.Duration
	leads   atomic.Bool
	logger  *slog.Logger
}

// run sweeps until ctx is done.
func (s *sweeper) run(ctx context.Context) error {
	return every(ctx, s.history/sweepShare, func(ctx context.Context) {
		if !s.leads.Load() {
			return
		}
		done, err := s.sweep(ctx)
		switch {
		case err == nil:
			s.logger.Info("blobs swept", "deleted", done.Blobs, "bytes", done.Bytes, "kept", done.Kept)
		case ctx.Err() == nil:
			s.logger.Warn("blobs were not swept; the next attempt is in an eighth of the history", "error", err)
		}
	})
}

// sweep keeps the blobs that versions name, and the bases of all segments on the
// log, without which the log cannot be folded.
func (s *sweeper) sweep(ctx context.Context) (natsfeed.Swept, error) {
	var bases []ident.Hash
	for r, err := range s.log.Under(ctx, events.SegmentSubject) {
		if err != nil {
			return natsfeed.Swept{}, err
		}
		if segment, ok := r.Event.Body.(*events.Segment); ok && segment.Base != (ident.Hash{}) {
			bases = append(bases, segment.Base)
		}
	}
	return s.chain.Sweep(ctx, s.history, bases)
}
