package events

import (
	"context"
	"errors"
)

// Errors of a log, to be tested with errors.Is. Any other error of an append
// leaves its outcome open: retry with the same events, IDs included.
var (
	// ErrConflict: the fence did not hold; nothing was appended.
	ErrConflict = errors.New("fence lost: somebody else wrote first")
	// ErrReconnected: the connection is not the one of the fence's
	// Generation; nothing was appended. Check again what was learned before.
	ErrReconnected = errors.New("the connection to the log was renewed")
	// ErrFull: the log takes no more; nothing was appended. Keep and retry.
	ErrFull = errors.New("the log is full")
	// ErrInvalid: an event says something that cannot be, or one ID occurs
	// twice; nothing was appended, and nothing will be by trying again.
	ErrInvalid = errors.New("invalid event")
	// ErrTooLarge: an event, or the batch, is larger than the log takes.
	ErrTooLarge = errors.New("too large for the log")
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("no such record")
	// ErrGap: records between the cursor and the next one are gone.
	ErrGap = errors.New("records are missing")
	// ErrRewound: the log ends before the cursor.
	ErrRewound = errors.New("the log ends before the cursor")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("the log is closed")
)

// MaxBatch is how many events one Append takes. A larger change set goes as
// several, tied by Object.Batch, each acknowledged before the next.
const MaxBatch = 500

// Fence makes an append depend on what its writer knows. The zero Fence
// always holds.
type Fence struct {
	// Kind says what is compared with Seq.
	Kind FenceKind
	// Subject, for FenceSubject.
	Subject Subject
	// Seq of the last record there that the writer has seen; 0 for none.
	Seq uint64
	// Generation, if not 0, is the Reader.Generation in which Seq was learned.
	Generation uint64
}

// FenceKind says what a Fence compares.
type FenceKind uint8

// The kinds of fences.
const (
	NoFence      FenceKind = iota
	FenceSubject           // the last record under Subject
	FenceLog               // the last record of the log
)

// Ack says where an append ended up.
type Ack struct {
	// Seq of the batch's last record. 0 if Duplicate and not known.
	Seq uint64
	// Duplicate: an earlier attempt had already been appended.
	Duplicate bool
}

// Appender writes to a log. It is safe for concurrent use.
type Appender interface {
	// Append puts up to MaxBatch events on the log: all of them, in order and
	// without others in between, or none. It returns once they are durable.
	// An attempt that was appended before counts as appended, also where the
	// log answers a conflict to it first.
	Append(ctx context.Context, batch []Event, fence Fence) (Ack, error)
	// AppendEach appends any number of events, each on its own, pipelined and
	// in no order, and returns nil once all are durable. After an error any
	// of them may be on the log; retry all.
	AppendEach(ctx context.Context, events []Event) error
}

// Bounds are the first and last Seq on a log. An empty log that was never
// written has First 1, Last 0.
type Bounds struct{ First, Last uint64 }

// Reader reads a log. It is safe for concurrent use.
type Reader interface {
	// Generation changes whenever the connection to the log was renewed: what
	// was learned in an earlier one may not hold any more (the log may have
	// been rewound). Never 0.
	Generation() uint64
	// Bounds and Last are answered by the log's leader, never by a replica
	// that lags.
	Bounds(ctx context.Context) (Bounds, error)
	// Get returns the record at seq, or ErrNotFound.
	Get(ctx context.Context, seq uint64) (Record, error)
	// Last returns the newest record under a subject, or ErrNotFound.
	Last(ctx context.Context, subject Subject) (Record, error)
	// Follow reads the log from the record after seq on, and then what comes.
	// With a name, what was acknowledged is kept under it for operators to
	// see; the caller's own cursor decides where reading starts all the same.
	Follow(ctx context.Context, after uint64, name string) (Follower, error)
}

// Follower reads a log in order. One goroutine uses it.
type Follower interface {
	// Next blocks until there is a record, and returns it with those that
	// are there already, dense and in order. Errors: ErrGap, ErrRewound,
	// ErrReconnected; after any the Follower must be closed.
	Next(ctx context.Context) ([]Record, error)
	// Ack says that all up to seq are no longer needed by this name.
	Ack(ctx context.Context, seq uint64) error
	Close() error
}
