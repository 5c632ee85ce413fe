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
