package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Replay folds a log again, record by record. One goroutine uses it.
type Replay struct {
	past   *Past
	ledger *ledger.Ledger
	from   ident.Position  // where it began
	first  uint64          // the first record that it folds
	last   Step            // what the last record did
	before *store.Snapshot // the content before a reset
}

// Step is one record and its effect.
type Step struct {
	Record   events.Record
	Position ident.Position // of the record
	// Changes are the rows of the content that differ from before, sorted.
	Changes []RowChange
	// Reset says that a segment began, and replaced the content.
	Reset bool
	// Problems are the diagnostics of the record and of the objects it applied.
	Problems []problem.Diagnostic
	// Verdict is about the author of the record.
	Verdict fold.Verdict
}

// What returns in one word what a record is: put, delete, begin, alive, overlay,
// remove, segment, refused or unreadable.
func What(r events.Record) string {
	switch b := r.Event.Body.(type) {
	case *events.Object:
		if b.Op == events.Delete {
			return "delete"
		}
		return "put"
	case *events.Begin:
		return "begin"
	case *events.Alive:
		return "alive"
	case *events.Overlay:
		if b.Remove {
			return "remove"
		}
		return "overlay"
	case *events.Segment:
		return "segment"
	}
	if errors.Is(r.Err, events.ErrRefused) {
		return "refused"
	}
	return "unreadable"
}

// RowChange is one row of the content before and after; nil: there is none.
type RowChange struct {
	Row           string
	Before, After []byte
	// Seq is the record that gave the value; 0 if no single record did.
	Seq uint64
}

// judge drops the messages that it decodes: a replay makes no world, so its fold
// need not keep them.
type judge struct{ fold.KindJudge }

func (j judge) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	_, problems, good := j.KindJudge.Judge(k, v)
	return nil, problems, good
}

func newReplay(p *Past, f *fold.Fold) *Replay {
	r := &Replay{past: p, from: f.Position(), first: f.Position().Seq + 1}
	r.ledger = ledger.New(f, p.Blobs, func(_ events.Record, c world.Change) {
		switch {
		case r.ledger == nil: // not a change: the ledger is being made
		case c.Reset:
			r.last.Reset, r.before = true, r.ledger.Content()
		default:
			r.last.Changes = r.rowChanges(c.Rows)
		}
	})
	return r
}

// From returns the position at which the replay began.
func (r *Replay) From() ident.Position { return r.from }

// Position returns the position of the last record that was folded.
func (r *Replay) Position() ident.Position { return r.ledger.Position() }

// Fold returns the fold itself; the caller must not change it.
func (r *Replay) Fold() *fold.Fold { return r.ledger.Fold() }

// Content returns the content at Position.
func (r *Replay) Content() *store.Snapshot { return r.ledger.Content() }

// Progress is called with the progress of long work. It may be nil.
type Progress func(done, total int64)

func (p Progress) show(done, total uint64) {
	if p != nil {
		p(int64(done), int64(total))
	}
}

// To folds up to the record seq and calls each, if not nil, with every step. It
// stops at the first error of each.
func (r *Replay) To(ctx context.Context, seq uint64, progress Progress, each func(Step) error) error {
	first := r.Position().Seq
	for rec, err := range readAhead(ctx, r.past.Log, first+1, seq) {
		if err != nil {
			return err
		}
		step, err := r.Next(ctx, rec)
		if err != nil {
			return err
		}
		progress.show(rec.Seq-first, seq-first)
		if each == nil {
			continue
		}
		if err := each(step); err != nil {
			return err
		}
	}
	return nil
}

// Next folds one record.
func (r *Replay) Next(ctx context.Context, rec events.Record) (Step, error) {
	r.last, r.before = Step{Record: rec}, nil
	problems, err := r.ledger.Apply(ctx, rec)
	if err != nil {
		return Step{}, err
	}
	r.last.Position, r.last.Problems, r.last.Verdict = r.Position(), problems, r.ledger.Fold().Verdict()
	if r.last.Reset {
		r.last.Changes = diffRows(r.before, r.Content())
	}
	return r.last, nil
}

// rowChanges returns the rows with their values before, sorted; a row may have
// changed twice.
func (r *Replay) rowChanges(rows []world.RowChange) []RowChange {
	first := make(map[string]int, len(rows))
	var changes []RowChange
	for _, row := range rows {
		i, again := first[row.Row]
		if !again {
			i = len(changes)
			first[row.Row] = i
			changes = append(changes, RowChange{Row: row.Row, Before: r.ledger.Get(row.Row)})
		}
		changes[i].After, changes[i].Seq = row.Value, row.Seq
	}
	slices.SortFunc(changes, func(a, b RowChange) int { return strings.Compare(a.Row, b.Row) })
	return changes
}

// diffRows returns the rows in which two contents differ, sorted.
func diffRows(a, b *store.Snapshot) []RowChange {
	d := store.Diff(a, b)
	var changes []RowChange
	for _, row := range d.Put {
		before, _ := a.Get(row.Key)
		changes = append(changes, RowChange{Row: row.Key, Before: before, After: row.Value})
	}
	for _, key := range d.Remove {
		before, _ := a.Get(key)
		changes = append(changes, RowChange{Row: key, Before: before})
	}
	slices.SortFunc(changes, func(a, b RowChange) int { return strings.Compare(a.Row, b.Row) })
	return changes
}

// Records yields the records of a log from first to last. It ends with the
// first error.
func Records(ctx context.Context, log events.RawReader, first, last uint64) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		for r, err := range log.Raw(ctx, first, last) {
			if err != nil {
				yield(events.Record{}, fmt.Errorf("read the log: %w", err))
				return
			}
			if !yield(r.Record(), nil) {
				return
			}
		}
	}
}

// How far readAhead reads ahead: records in a batch, and batches.
const (
	aheadRecords = 512
	aheadBatches = 4
)

// readAhead yields the records of a log from first to last, which another goroutine reads and
// decodes in advance. It ends with the first error.
func readAhead(ctx context.Context, log events.RawReader, first, last uint64) iter.Seq2[events.Record, error] {
	type batch struct {
		records []events.Record
		err     error
	}
	return func(yield func(events.Record, error) bool) {
		reading, stop := context.WithCancel(ctx)
		batches := make(chan batch, aheadBatches)
		go func() {
			defer close(batches)
			var b batch
			send := func() bool {
				select {
				case batches <- b:
					b.records = make([]events.Record, 0, aheadRecords)
					return true
				case <-reading.Done():
					return false
				}
			}
			for rec, err := range Records(reading, log, first, last) {
				if b.err = err; err != nil {
					break
				}
				if b.records = append(b.records, rec); len(b.records) == aheadRecords && !send() {
					return
				}
			}
			send()
		}()
		defer func() {
			stop()
			for range batches { // until the goroutine has ended
			}
		}()
		for b := range batches {
			for _, rec := range b.records {
				if !yield(rec, nil) {
					return
				}
			}
			if b.err != nil {
				yield(events.Record{}, b.err)
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(events.Record{}, fmt.Errorf("read the log: %w", err))
		}
	}
}
