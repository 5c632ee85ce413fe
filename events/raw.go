package events

import (
	"context"
	"iter"
)

// RawReader reads a log to copy it. It is safe for concurrent use.
type RawReader interface {
	// Raw yields the records from first to last, dense and in order. It ends
	// with the first error, which may be ErrGap, ErrRewound or ErrReconnected.
	Raw(ctx context.Context, first, last uint64) iter.Seq2[Raw, error]
}

// RawFollower is a Follower for a reader that copies the log.
type RawFollower interface {
	Follower
	// NextRaw is Next with the records as the log keeps them.
	NextRaw(ctx context.Context) ([]Raw, error)
}
