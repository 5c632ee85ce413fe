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
	from   ident.Position // where it began
	begun  bool           // with the record at from, not after it

	// What the last record did.
	changes []RowChange
	before  *store.Snapshot // of a reset; nil: there was none
	reset   bool
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
	r := &Replay{past: p, from: f.Position()}
	r.ledger = ledger.New(f, blobs{p}, func(_ events.Record, c world.Change) {
		switch {
		case r.ledger == nil: // not a change: the ledger is being made
		case c.Reset:
			r.reset, r.before = true, r.ledger.Content()
		default:
			r.changes = r.rowChanges(c.Rows)
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

// To folds up to the record seq and calls each, if not nil, with every step. It
// stops at the first error of each.
func (r *Replay) To(ctx context.Context, seq uint64, each func(Step) error) error {
	at := r.Position().Seq
	if seq <= at {
		return nil
	}
	for rec, err := range Records(ctx, r.past.Log, at+1, seq) {
		if err != nil {
			return err
		}
		step, err := r.Next(ctx, rec)
		if err != nil {
			return err
		}
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
	r.changes, r.before, r.reset = nil, nil, false
	problems, err := r.ledger.Apply(ctx, rec)
	if err != nil {
		return Step{}, err
	}
	if r.reset {
		r.changes = diffRows(r.before, r.Content())
	}
	return Step{Record: rec, Position: r.Position(), Changes: r.changes, Reset: r.reset, Problems: problems}, nil
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
func Records(ctx context.Context, log events.Reader, first, last uint64) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		if first > last {
			return
		}
		err := follow(ctx, log, first, last, func(r events.Record) bool { return yield(r, nil) })
		if err != nil {
			yield(events.Record{}, fmt.Errorf("read the log: %w", err))
		}
	}
}

func follow(ctx context.Context, log events.Reader, first, last uint64, yield func(events.Record) bool) (err error) {
	f, err := log.Follow(ctx, first-1, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		recs, err := f.Next(ctx)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if r.Seq > last || !yield(r) || r.Seq == last {
				return nil
			}
		}
	}
}
