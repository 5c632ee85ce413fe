package memlog

import (
	"context"
	"fmt"
	"iter"

	"meshlog.dev/events"
)

// Generation implements events.Reader.
func (l *Log) Generation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation
}

// Bounds implements events.Reader.
func (l *Log) Bounds(ctx context.Context) (events.Bounds, error) {
	if err := ctx.Err(); err != nil {
		return events.Bounds{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return events.Bounds{}, fmt.Errorf("bounds: %w", events.ErrClosed)
	}
	return events.Bounds{First: l.first, Last: l.last()}, nil
}

// Get implements events.Reader.
func (l *Log) Get(ctx context.Context, seq uint64) (events.Record, error) {
	if err := ctx.Err(); err != nil {
		return events.Record{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, events.ErrClosed)
	}
	if seq < l.first || seq > l.last() {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, events.ErrNotFound)
	}
	return l.records[seq-l.first].record, nil
}

// Last implements events.Reader.
func (l *Log) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	if err := ctx.Err(); err != nil {
		return events.Record{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, events.ErrClosed)
	}
	seq := l.head(subject)
	if seq == 0 {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, events.ErrNotFound)
	}
	return l.records[seq-l.first].record, nil
}

// ReadAfter returns up to limit records behind seq, none if the log ends there.
// It never blocks. Errors: ErrGap, ErrRewound, ErrClosed.
func (l *Log) ReadAfter(seq uint64, limit int) ([]events.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read(seq, limit)
}

// read needs l.mu.
func (l *Log) read(after uint64, limit int) ([]events.Record, error) {
	switch {
	case l.closed:
		return nil, events.ErrClosed
	case after > l.last():
		return nil, fmt.Errorf("read after %d: %w: its last is %d", after, events.ErrRewound, l.last())
	case after+1 < l.first:
		return nil, fmt.Errorf("read after %d: %w: the log begins at %d", after, events.ErrGap, l.first)
	}
	from := l.records[after+1-l.first:]
	from = from[:min(limit, len(from))]
	var records []events.Record
	for _, r := range from {
		records = append(records, r.record)
	}
	return records, nil
}

// Raw implements events.RawReader.
func (l *Log) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for seq := first; seq <= last; seq++ {
			r, err := l.raw(ctx, seq)
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

func (l *Log) raw(ctx context.Context, seq uint64) (events.Raw, error) {
	if err := ctx.Err(); err != nil {
		return events.Raw{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.read(seq-1, 1); err != nil {
		return events.Raw{}, err
	}
	if seq > l.last() {
		return events.Raw{}, fmt.Errorf("read record %d: %w: its last is %d", seq, events.ErrRewound, l.last())
	}
	s := l.records[seq-l.first]
	return events.Raw{Seq: seq, Time: s.record.Time, Subject: s.subject, Data: s.data}, nil
}

// Follow implements events.Reader.
func (l *Log) Follow(ctx context.Context, after uint64, name string) (events.Follower, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("follow: %w", events.ErrClosed)
	}
	return &follower{log: l, name: name, generation: l.generation, cursor: after}, nil
}

type follower struct {
	log        *Log
	name       string
	generation uint64
	cursor     uint64 // Seq of the last record returned
	closed     bool   // guarded by log.mu
}

// Next implements events.Follower.
func (f *follower) Next(ctx context.Context) ([]events.Record, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		records, changed, err := f.poll()
		if err != nil {
			return nil, fmt.Errorf("follow: %w", err)
		}
		if len(records) > 0 {
			f.cursor = records[len(records)-1].Seq
			return records, nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func (f *follower) poll() ([]events.Record, <-chan struct{}, error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if f.closed {
		return nil, nil, events.ErrClosed
	}
	if f.generation != f.log.generation {
		return nil, nil, events.ErrReconnected
	}
	records, err := f.log.read(f.cursor, maxRead)
	return records, f.log.changed, err
}

// Ack implements events.Follower.
func (f *follower) Ack(ctx context.Context, seq uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if f.closed || f.log.closed {
		return fmt.Errorf("acknowledge %d: %w", seq, events.ErrClosed)
	}
	if f.name != "" {
		f.log.acked[f.name] = seq
	}
	return nil
}

// Close implements events.Follower.
func (f *follower) Close() error {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.closed = true
	return nil
}
