package memlog

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"meshlog.dev/events"
)

// Generation implements events.Reader.
func (l *Log) Generation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation
}

// Bounds implements events.Reader.
func (l *Log) Bounds(ctx context.Context) (b events.Bounds, err error) {
	err = l.do(ctx, "bounds", func() error {
		b = l.bounds()
		return nil
	})
	return b, err
}

// bounds needs l.mu.
func (l *Log) bounds() events.Bounds { return events.Bounds{First: l.first, Last: l.last()} }

// Get implements events.Reader.
func (l *Log) Get(ctx context.Context, seq uint64) (r events.Record, err error) {
	err = l.do(ctx, "get record "+strconv.FormatUint(seq, 10), func() error {
		if l.bounds().Within(seq, seq) != nil {
			return events.ErrNotFound
		}
		r = l.records[seq-l.first].record
		return nil
	})
	return r, err
}

// Last implements events.Reader.
func (l *Log) Last(ctx context.Context, subject events.Subject) (r events.Record, err error) {
	err = l.do(ctx, "last of "+string(subject), func() error {
		seq := l.head(subject)
		if seq == 0 {
			return events.ErrNotFound
		}
		r = l.records[seq-l.first].record
		return nil
	})
	return r, err
}

// Under implements events.Reader.
func (l *Log) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		var records []events.Record
		err := l.do(ctx, "read "+string(subject), func() error {
			for _, r := range l.records {
				if r.raw.Subject == subject {
					records = append(records, r.record)
				}
			}
			return nil
		})
		if err != nil {
			yield(events.Record{}, err)
			return
		}
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// ReadAfter returns up to limit records behind seq, none if the log ends there.
// It never blocks. Errors: ErrGap, ErrRewound, ErrClosed.
func (l *Log) ReadAfter(seq uint64, limit int) (records []events.Record, err error) {
	err = l.do(context.Background(), "read", func() (err error) {
		records, err = l.read(seq, limit)
		return err
	})
	return records, err
}

// read needs l.mu.
func (l *Log) read(after uint64, limit int) ([]events.Record, error) {
	if err := l.bounds().Within(after+1, after); err != nil {
		return nil, fmt.Errorf("after %d: %w", after, err)
	}
	from := l.records[after+1-l.first:]
	var records []events.Record
	for _, r := range from[:min(limit, len(from))] {
		records = append(records, r.record)
	}
	return records, nil
}

// Raw implements events.RawReader.
func (l *Log) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for seq := first; seq <= last; seq++ {
			var r events.Raw
			err := l.do(ctx, "read", func() error {
				if err := l.bounds().Within(seq, seq); err != nil {
					return err
				}
				r = l.records[seq-l.first].raw
				return nil
			})
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Follow implements events.Reader.
func (l *Log) Follow(ctx context.Context, after uint64, name string) (f events.Follower, err error) {
	err = l.do(ctx, "follow", func() error {
		f = &follower{log: l, name: name, generation: l.generation, cursor: after}
		return nil
	})
	return f, err
}

type follower struct {
	log        *Log
	name       string
	generation uint64
	cursor     uint64 // Seq of the last record returned
	closed     bool   // guarded by log.mu
}

// Next implements events.Follower.
func (f *follower) Next(ctx context.Context) (records []events.Record, err error) {
	for {
		var changed <-chan struct{}
		err := f.do(ctx, "follow", func() (err error) {
			if f.generation != f.log.generation {
				return events.ErrReconnected
			}
			changed = f.log.changed
			records, err = f.log.read(f.cursor, maxRead)
			return err
		})
		if err != nil {
			return nil, err
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

// Ack implements events.Follower.
func (f *follower) Ack(ctx context.Context, seq uint64) error {
	return f.do(ctx, "acknowledge "+strconv.FormatUint(seq, 10), func() error {
		if f.name != "" {
			f.log.acked[f.name] = seq
		}
		return nil
	})
}

// do is Log.do for a follower that is open.
func (f *follower) do(ctx context.Context, what string, act func() error) error {
	return f.log.do(ctx, what, func() error {
		if f.closed {
			return events.ErrClosed
		}
		return act()
	})
}

// Close implements events.Follower.
func (f *follower) Close() error {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.closed = true
	return nil
}
