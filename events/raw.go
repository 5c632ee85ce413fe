package events

import (
	"context"
	"iter"
	"time"
)

// Raw is a record as its log keeps it, for copies of a log.
type Raw struct {
	Seq     uint64
	Time    time.Time // the server's clock
	Subject Subject
	Data    []byte // an encoded Event, or other bytes; callers must not change it
}

// Record returns the record that a log with r returns.
func (r Raw) Record() Record { return DecodeRecord(r.Seq, r.Time, r.Data) }

// RawReader reads a log to copy it. It is safe for concurrent use.
type RawReader interface {
	// Raw yields the records from first to last, dense and in order. It ends
	// with the first error, which may be ErrGap, ErrRewound or ErrReconnected.
	Raw(ctx context.Context, first, last uint64) iter.Seq2[Raw, error]
}
