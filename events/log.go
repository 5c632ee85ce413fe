package events

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Errors of a log, to be tested with errors.Is. Any other error of an append
// leaves its outcome open: retry with the same events, IDs included.
var (
	// ErrConflict: the fence did not hold; nothing was appended.
	ErrConflict = errors.New("fence lost: another writer appended first")
	// ErrReconnected: the connection is not the one of the fence's
	// Generation; nothing was appended. Read the log again before a retry.
	ErrReconnected = errors.New("the connection to the log was renewed")
	// ErrFull: the log takes no more records; nothing was appended. Keep the
	// events and retry.
	ErrFull = errors.New("the log is full")
	// ErrInvalid: an event breaks the schema, or one ID occurs twice; nothing
	// was appended, and a retry fails again.
	ErrInvalid = errors.New("invalid event")
	// ErrTooLarge: an event, or the batch, is larger than the log takes.
	ErrTooLarge = errors.New("too large for the log")
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("no such record")
	// ErrGap: records between the cursor and the next one are missing.
	ErrGap = errors.New("records are missing")
	// ErrRewound: the log ends before the cursor.
	ErrRewound = errors.New("the log ends before the cursor")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("the log is closed")
)

// MaxBatch is the largest number of events in one Append. A writer splits a
// larger change set into several appends, tied by Object.Batch, and waits for
// each acknowledgement before the next one.
const MaxBatch = 500

// Fence makes an append fail if another writer appended first. The zero Fence
// always holds.
type Fence struct {
	// Kind selects the record that is compared with Seq.
	Kind FenceKind
	// Subject, for FenceSubject.
	Subject Subject
	// Seq of the last such record that the writer has seen; 0 for none.
	Seq uint64
	// Generation, if not 0, is the Reader.Generation in which Seq was read.
	Generation uint64
}

// FenceKind is the record that a Fence compares.
type FenceKind uint8

// The kinds of fences.
const (
	NoFence      FenceKind = iota
	FenceSubject           // the last record under Subject
	FenceLog               // the last record of the log
)

// Ack is the result of an append.
type Ack struct {
	// Seq of the batch's last record. 0 if Duplicate and not known.
	Seq uint64
	// Duplicate: an earlier attempt appended the batch.
	Duplicate bool
}

// Appender writes to a log. It is safe for concurrent use.
type Appender interface {
	// Append appends up to MaxBatch events: all of them, in order and without
	// other records in between, or none. It returns when they are durable. A
	// retry of an append that succeeded succeeds too, as a Duplicate.
	Append(ctx context.Context, batch []Event, fence Fence) (Ack, error)
	// AppendEach appends any number of events, each on its own, pipelined and
	// in no order, and returns nil when all are durable. After an error any of
	// them may be on the log; retry all.
	AppendEach(ctx context.Context, events []Event) error
}

// Bounds are the first and last Seq on a log. A log without any record so far
// has First 1, Last 0.
type Bounds struct{ First, Last uint64 }

// Within returns an error unless the log has the records from first to last:
// ErrRewound or ErrGap. With last = first - 1 it looks only whether a reader can
// begin at first.
func (b Bounds) Within(first, last uint64) error {
	switch {
	case last > b.Last:
		return fmt.Errorf("%w: its last record is %d", ErrRewound, b.Last)
	case first < b.First:
		return fmt.Errorf("%w: the log begins at %d", ErrGap, b.First)
	}
	return nil
}

// Reader reads a log. It is safe for concurrent use.
type Reader interface {
	// Generation changes whenever the connection to the log is renewed: facts
	// read before may not hold any more (the log may have been rewound). It is
	// never 0.
	Generation() uint64
	// The log's leader answers Bounds and Last, never a replica that lags.
	Bounds(ctx context.Context) (Bounds, error)
	// Get returns the record at seq, or ErrNotFound.
	Get(ctx context.Context, seq uint64) (Record, error)
	// Last returns the newest record under a subject, or ErrNotFound.
	Last(ctx context.Context, subject Subject) (Record, error)
	// Under yields the records under a subject, oldest first. It ends with the
	// first error. It is for subjects with few records: a driver may need a request
	// for each.
	Under(ctx context.Context, subject Subject) iter.Seq2[Record, error]
	// Follow reads the log from the record behind after on, and then each new
	// record. With a name, the log keeps the follower's acknowledgements for
	// operators; they do not change the record at which Follow starts.
	Follow(ctx context.Context, after uint64, name string) (Follower, error)
}

// Follower reads a log in order. One goroutine uses it.
type Follower interface {
	// Next blocks until there is a record, and returns it with the records that
	// have arrived behind it, dense and in order. After an error (ErrGap,
	// ErrRewound, ErrReconnected) the Follower must be closed.
	Next(ctx context.Context) ([]Record, error)
	// Ack acknowledges all records up to seq.
	Ack(ctx context.Context, seq uint64) error
	Close() error
}
