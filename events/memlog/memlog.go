// Package memlog keeps the log in memory, for tests and simulation. It keeps the
// promises of natslog and passes the same suite. It also has the faults of a
// real log, on demand: tests can rewind, trim and fill it, and make it forget
// the ids that it has seen.
//
// It starts no goroutine and reads no clock, and only Follower.Next ever
// blocks: in a single-threaded simulation read with [Log.ReadAfter].
package memlog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"meshlog.dev/events"
)

// MaxEvent is the largest event of a Log in bytes, as of natslog.
const MaxEvent = 512 << 10

// maxRead is how many records one Next returns at most.
const maxRead = 256

// Log is a log in memory. It is safe for concurrent use. The zero Log is not
// ready; see New.
type Log struct {
	now func() time.Time

	mu         sync.Mutex
	closed     bool
	generation uint64
	first      uint64   // Seq of records[0]
	records    []stored // dense
	bytes      int      // of all records
	maxBytes   int      // 0: no limit
	seen       map[string]uint64
	acked      map[string]uint64
	changed    chan struct{} // closed and renewed whenever a follower should read again
}

type stored struct {
	id     string
	raw    events.Raw
	record events.Record // of raw
}

// New returns an empty log. now is the server's clock.
func New(now func() time.Time) *Log {
	return &Log{
		now:        now,
		generation: 1,
		first:      1,
		seen:       map[string]uint64{},
		acked:      map[string]uint64{},
		changed:    make(chan struct{}),
	}
}

// Append implements events.Appender.
//
// If some events of a batch are on the log and others are not, the batch is no
// retry but a mistake of the caller; Append refuses it with ErrInvalid.
func (l *Log) Append(ctx context.Context, batch []events.Event, fence events.Fence) (ack events.Ack, err error) {
	messages, err := events.BatchMessages(batch)
	if err == nil {
		err = checkSize(messages)
	}
	if err != nil {
		return events.Ack{}, fmt.Errorf("append: %w", err)
	}
	err = l.do(ctx, "append "+batch[0].ID, func() (err error) {
		ack, err = l.append(messages, fence)
		return err
	})
	return ack, err
}

// AppendEach implements events.Appender.
func (l *Log) AppendEach(ctx context.Context, batch []events.Event) error {
	messages, err := events.Messages(batch)
	if err == nil {
		err = checkSize(messages)
	}
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	return l.do(ctx, "append", func() error {
		for i := range messages {
			if _, err := l.append(messages[i:i+1], events.Fence{}); err != nil {
				return fmt.Errorf("%s: %w", messages[i].ID, err)
			}
		}
		return nil
	})
}

// do runs act under the lock, unless ctx has ended or the log is closed.
func (l *Log) do(ctx context.Context, what string, act func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := ctx.Err()
	if err == nil && l.closed {
		err = events.ErrClosed
	}
	if err == nil {
		err = act()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func checkSize(messages []events.Message) error {
	for _, m := range messages {
		if len(m.Data) > MaxEvent {
			return fmt.Errorf("event %q: %w: it has %d bytes, the limit is %d", m.ID, events.ErrTooLarge, len(m.Data), MaxEvent)
		}
	}
	return nil
}

// append needs l.mu.
func (l *Log) append(messages []events.Message, fence events.Fence) (events.Ack, error) {
	if fence.Generation != 0 && fence.Generation != l.generation {
		return events.Ack{}, events.ErrReconnected
	}
	if ack, err := l.duplicate(messages); err != nil || ack.Duplicate {
		return ack, err
	}
	if !l.holds(fence) {
		// The log may hold an event whose id it has forgotten.
		if seq := l.find(messages[len(messages)-1].ID, fence.Seq); seq != 0 {
			return events.Ack{Seq: seq, Duplicate: true}, nil
		}
		return events.Ack{}, events.ErrConflict
	}
	size := 0
	for _, m := range messages {
		size += len(m.Data)
	}
	if l.maxBytes > 0 && l.bytes+size > l.maxBytes {
		return events.Ack{}, events.ErrFull
	}
	for _, m := range messages {
		l.store(m.ID, events.Raw{Subject: m.Subject, Data: m.Data})
	}
	return events.Ack{Seq: l.last()}, nil
}

// duplicate acknowledges a batch whose ids the log remembers.
func (l *Log) duplicate(messages []events.Message) (events.Ack, error) {
	known := 0
	for _, m := range messages {
		if _, ok := l.seen[m.ID]; ok {
			known++
		}
	}
	switch known {
	case 0:
		return events.Ack{}, nil
	case len(messages):
		return events.Ack{Seq: l.seen[messages[known-1].ID], Duplicate: true}, nil
	}
	return events.Ack{}, fmt.Errorf("%w: %d of the batch's %d are on the log already", events.ErrInvalid, known, len(messages))
}

func (l *Log) holds(fence events.Fence) bool {
	switch fence.Kind {
	case events.FenceSubject:
		return l.head(fence.Subject) == fence.Seq
	case events.FenceLog:
		return l.last() == fence.Seq
	}
	return true
}

func (l *Log) store(id string, raw events.Raw) {
	raw.Seq, raw.Time = l.last()+1, l.now().UTC()
	l.records = append(l.records, stored{id, raw, raw.Record()})
	l.bytes += len(raw.Data)
	if id != "" {
		l.seen[id] = raw.Seq
	}
	l.wake()
}

func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Log) last() uint64 { return l.first + uint64(len(l.records)) - 1 }

// head returns the Seq of the newest record under a subject, 0 for none.
func (l *Log) head(s events.Subject) uint64 {
	for i, r := range slices.Backward(l.records) {
		if r.raw.Subject == s {
			return l.first + uint64(i)
		}
	}
	return 0
}

// find returns the Seq of the record with that id after seq, 0 for none.
func (l *Log) find(id string, after uint64) uint64 {
	for i, r := range slices.Backward(l.records) {
		seq := l.first + uint64(i)
		if seq <= after {
			break
		}
		if r.id == id {
			return seq
		}
	}
	return 0
}
