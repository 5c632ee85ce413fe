package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Replay folds a log again, record by record. One goroutine uses it.
type Replay struct {
	past    *Past
	fold    *fold.Fold
	from    ident.Position    // where it began
	begun   bool              // with the record at from, and not behind it
	content *store.Snapshot   // what the fold holds, but for the rows of behind
	behind  map[string][]byte // nil: removed
}

// Step is one record and what it did.
type Step struct {
	Record   events.Record
	Position ident.Position // of the record
	// Changes are the rows of the content that differ from before, sorted.
	Changes []RowChange
	// Reset says that a segment began: the content was made anew.
	Reset bool
	// Problems are what is wrong with the record and what it applied.
	Problems []problem.Diagnostic
}

// RowChange is one row of the content before and after; nil: it was, or is,
// not there.
type RowChange struct {
	Row           string
	Before, After []byte
	// Seq is the record that gave the value; 0 where no single one did.
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
	r := &Replay{past: p, fold: f, from: f.Position(), behind: map[string][]byte{}}
	r.content = contentOf(f)
	return r
}

func contentOf(f *fold.Fold) *store.Snapshot {
	var d store.Delta
	for _, r := range f.Content().Rows {
		d.Put = append(d.Put, store.Row{Key: r.Row, Value: r.Value})
	}
	return (*store.Snapshot)(nil).With(d)
}

// From is the position behind which the replay began.
func (r *Replay) From() ident.Position { return r.from }

// Position is the last record that was folded.
func (r *Replay) Position() ident.Position { return r.fold.Position() }

// Fold is the fold itself; it must not be changed.
func (r *Replay) Fold() *fold.Fold { return r.fold }

// Content is the content at Position.
func (r *Replay) Content() *store.Snapshot {
	if len(r.behind) == 0 {
		return r.content
	}
	var d store.Delta
	for _, row := range slices.Sorted(maps.Keys(r.behind)) {
		if value := r.behind[row]; value != nil {
			d.Put = append(d.Put, store.Row{Key: row, Value: value})
		} else {
			d.Remove = append(d.Remove, row)
		}
	}
	r.content, r.behind = r.content.With(d), map[string][]byte{}
	return r.content
}

// To folds up to the record seq and hands on each step. Where each returns an
// error, it ends with that.
func (r *Replay) To(ctx context.Context, seq uint64, each func(Step) error) error {
	at := r.fold.Position().Seq
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
	var base iter.Seq2[string, []byte]
	if h, needs := r.fold.NeedsBase(rec); needs {
		rows, err := r.past.base(ctx, h)
		if err != nil {
			return Step{}, fmt.Errorf("segment of record %d: %w", rec.Seq, err)
		}
		base = rows
	}
	change, problems, err := r.fold.Apply(rec, base)
	if err != nil {
		return Step{}, fmt.Errorf("fold record %d: %w", rec.Seq, err)
	}
	step := Step{Record: rec, Position: r.fold.Position(), Reset: change.Reset, Problems: problems}
	if change.Reset {
		step.Changes = r.reset()
		return step, nil
	}
	step.Changes = r.changes(change.Rows)
	return step, nil
}

// reset takes the whole content from the fold.
func (r *Replay) reset() []RowChange {
	before := r.Content()
	r.content = contentOf(r.fold)
	return diffRows(before, r.content)
}

func (r *Replay) changes(rows []world.RowChange) []RowChange {
	first := make(map[string]int, len(rows))
	var changes []RowChange
	for _, row := range rows {
		i, again := first[row.Row]
		if !again {
			i = len(changes)
			first[row.Row] = i
			changes = append(changes, RowChange{Row: row.Row, Before: r.get(row.Row)})
		}
		changes[i].After, changes[i].Seq = row.Value, row.Seq
		r.behind[row.Row] = row.Value
	}
	slices.SortFunc(changes, func(a, b RowChange) int { return strings.Compare(a.Row, b.Row) })
	return changes
}

// get is a row as it is now; nil: it is not there.
func (r *Replay) get(row string) []byte {
	if value, ok := r.behind[row]; ok {
		return value
	}
	value, _ := r.content.Get(row)
	return value
}

// diffRows are the rows in which two contents differ, sorted.
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
