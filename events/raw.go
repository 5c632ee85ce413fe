package events

import (
	"context"
	"iter"
	"time"
)

// Raw is a record as its log keeps it: what a copy of a log is made of.
type Raw struct {
	Seq     uint64
	Time    time.Time // the server's clock
	Subject Subject
	Data    []byte // of an Event, or bytes that are none; not to be changed
}

// Record is what a log that has r returns.
func (r Raw) Record() Record { return DecodeRecord(r.Seq, r.Time, r.Data) }

// RawReader reads a log to copy it. It is safe for concurrent use.
type RawReader interface {
	// Raw yields the records from first to last, dense and in order. It ends
	// with the first error: ErrGap, ErrRewound or ErrReconnected, as of a
	// Follower.
	Raw(ctx context.Context, first, last uint64) iter.Seq2[Raw, error]
}
