package archive

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	archivev1 "meshlog.dev/proto/meshlog/archive/v1"
)

// Generation implements events.Reader. A file has no connection to lose.
func (a *Archive) Generation() uint64 { return 1 }

// Bounds implements events.Reader.
func (a *Archive) Bounds(ctx context.Context) (events.Bounds, error) {
	if err := a.ready(ctx); err != nil {
		return events.Bounds{}, fmt.Errorf("bounds: %w", err)
	}
	return a.bounds(), nil
}

func (a *Archive) bounds() events.Bounds {
	return events.Bounds{First: a.index.GetFirst(), Last: a.last}
}

// Get implements events.Reader.
func (a *Archive) Get(ctx context.Context, seq uint64) (events.Record, error) {
	run, err := a.from(ctx, seq, seq)
	if errors.Is(err, events.ErrGap) || errors.Is(err, events.ErrRewound) {
		err = events.ErrNotFound
	}
	if err != nil {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, err)
	}
	return run.raw(0).Record(), nil
}

// Last implements events.Reader.
func (a *Archive) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	if err := a.ready(ctx); err != nil {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, err)
	}
	subjects := a.index.GetSubjects()
	i, ok := slices.BinarySearchFunc(subjects, string(subject), func(s *archivev1.Subject, name string) int {
		return strings.Compare(s.GetSubject(), name)
	})
	if !ok {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, events.ErrNotFound)
	}
	return a.Get(ctx, subjects[i].GetSeq())
}

// Under implements events.Reader. It reads the archive up to the last record under the
// subject.
func (a *Archive) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		last, err := a.Last(ctx, subject)
		if errors.Is(err, events.ErrNotFound) {
			return
		}
		if err != nil {
			yield(events.Record{}, err)
			return
		}
		for r, err := range a.Find(ctx, subject) {
			if err != nil {
				yield(events.Record{}, err)
				return
			}
			if !yield(r.Record(), nil) || r.Seq >= last.Seq {
				return
			}
		}
	}
}

// Raw implements events.RawReader.
func (a *Archive) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for next := first; next <= last; {
			run, err := a.from(ctx, next, last)
			if err != nil {
				yield(events.Raw{}, fmt.Errorf("read from %d to %d: %w", next, last, err))
				return
			}
			for i := range run.records {
				if next > last || !yield(run.raw(i), nil) {
					return
				}
				next++
			}
		}
	}
}

// run is a record and the records behind it in its block.
type run struct {
	first   uint64 // Seq of records[0]
	records []*archivev1.Record
}

func (r run) raw(i int) events.Raw {
	rec := r.records[i]
	return events.Raw{
		Seq: r.first + uint64(i), Time: time.Unix(0, rec.GetTime()).UTC(),
		Subject: events.Subject(rec.GetSubject()), Data: rec.GetData(), Refused: rec.GetRefused(),
	}
}

// from reads the record at seq and those behind it in its block. It fails unless
// the log has all records up to last.
func (a *Archive) from(ctx context.Context, seq, last uint64) (run, error) {
	if err := a.ready(ctx); err != nil {
		return run{}, err
	}
	if err := a.bounds().Within(seq, last); err != nil {
		return run{}, err
	}
	i, found := slices.BinarySearch(a.starts, seq)
	if !found {
		i--
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.recent != i {
		packed, err := a.packed(a.index.GetLog()[i], nil)
		if err != nil {
			return run{}, err
		}
		block := new(archivev1.Records)
		if err := a.unpack(packed, block); err != nil {
			return run{}, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if len(block.GetRecords()) != int(a.index.GetLog()[i].GetRecords()) {
			return run{}, fmt.Errorf("%w: a block has %d records, want %d", ErrDamaged, len(block.GetRecords()), a.index.GetLog()[i].GetRecords())
		}
		a.recent, a.record = i, block.GetRecords()
	}
	return run{seq, a.record[seq-a.starts[i]:]}, nil
}

// Follow implements events.Reader. At the end of the log the follower waits
// until its context ends, as no record follows. Follow does not keep
// acknowledgements.
func (a *Archive) Follow(ctx context.Context, after uint64, _ string) (events.Follower, error) {
	if err := a.ready(ctx); err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}
	return &follower{archive: a, cursor: after}, nil
}

type follower struct {
	archive *Archive
	cursor  uint64 // Seq of the last record returned
	closed  bool
}

// Next implements events.Follower.
func (f *follower) Next(ctx context.Context) ([]events.Record, error) {
	if f.closed {
		return nil, fmt.Errorf("follow: %w", events.ErrClosed)
	}
	if f.cursor == f.archive.last {
		select {
		case <-ctx.Done():
		case <-f.archive.closed:
		}
	}
	run, err := f.archive.from(ctx, f.cursor+1, f.cursor)
	if err != nil {
		return nil, fmt.Errorf("follow after %d: %w", f.cursor, err)
	}
	records := make([]events.Record, len(run.records))
	for i := range records {
		records[i] = run.raw(i).Record()
	}
	f.cursor += uint64(len(records))
	return records, nil
}

// Ack implements events.Follower.
func (f *follower) Ack(ctx context.Context, seq uint64) error {
	err := f.archive.ready(ctx)
	if f.closed {
		err = events.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("acknowledge %d: %w", seq, err)
	}
	return nil
}

// Close implements events.Follower.
func (f *follower) Close() error {
	f.closed = true
	return nil
}
