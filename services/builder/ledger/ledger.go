// Package ledger holds the state of the log at a position: the fold of its
// records, the content of that fold as a snapshot, and the bases of its segments.
//
// The builder follows the log with a Ledger, and operate/past replays the log
// with one, so both come to the same content by the same code.
package ledger

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Ledger is a fold together with its content. One goroutine uses it.
type Ledger struct {
	fold    *fold.Fold
	blobs   store.Blobs
	changed func(events.Record, world.Change)
	content *store.Snapshot   // the content of fold, without the changes in behind
	behind  map[string][]byte // by row; nil: the row is removed
}

// New returns the Ledger of a fold. It reads the bases of segments from blobs.
//
// If changed is not nil, the Ledger calls it with every change of the content and
// the record that made it. During that call, Content and Get return the state
// before the change. A change with Reset contains all rows of the new content.
func New(f *fold.Fold, blobs store.Blobs, changed func(events.Record, world.Change)) *Ledger {
	l := &Ledger{blobs: blobs, changed: changed, behind: map[string][]byte{}}
	l.Restart(f)
	return l
}

// Restart replaces the fold, and with it the whole content.
func (l *Ledger) Restart(f *fold.Fold) {
	l.fold = f
	l.change(events.Record{}, f.Content())
}

// Fold returns the fold. The caller must not apply records to it.
func (l *Ledger) Fold() *fold.Fold { return l.fold }

// Position returns the position of the last record that was folded.
func (l *Ledger) Position() ident.Position { return l.fold.Position() }

// Content returns the content at Position. Only here the changes since the last
// call are applied to the snapshot, all at once.
func (l *Ledger) Content() *store.Snapshot {
	if len(l.behind) > 0 {
		l.content = l.content.With(deltaFrom(l.behind))
		clear(l.behind)
	}
	return l.content
}

// Get returns the value of a row at Position, nil if there is none. It leaves
// the snapshot as it is.
func (l *Ledger) Get(row string) []byte {
	if value, ok := l.behind[row]; ok {
		return value
	}
	value, _ := l.content.Get(row)
	return value
}

// Apply folds the next record, and returns the problems of the record and of the
// objects that it applied. It reads the base of a segment first, and
// returns a *BaseError if that fails. The Ledger is unchanged after an error.
func (l *Ledger) Apply(ctx context.Context, rec events.Record) ([]problem.Diagnostic, error) {
	var base iter.Seq2[string, []byte]
	if h, needs := l.fold.NeedsBase(rec); needs {
		rows, err := readBase(ctx, l.blobs, h)
		if err != nil {
			return nil, &BaseError{Base: h, Record: rec.Seq, Err: err}
		}
		base = rows
	}
	change, problems, err := l.fold.Apply(rec, base)
	if err != nil {
		return nil, fmt.Errorf("fold record %d: %w", rec.Seq, err)
	}
	if !change.IsEmpty() {
		l.change(rec, change)
	}
	return problems, nil
}

func (l *Ledger) change(rec events.Record, c world.Change) {
	if l.changed != nil {
		l.changed(rec, c)
	}
	if c.Reset {
		l.content = Content(c)
		clear(l.behind)
		return
	}
	for _, r := range c.Rows {
		l.behind[r.Row] = r.Value
	}
}

// Content returns the content that the rows of a change make alone.
func Content(c world.Change) *store.Snapshot {
	var whole store.Delta
	for _, r := range c.Rows {
		whole.Put = append(whole.Put, store.Row{Key: r.Row, Value: r.Value})
	}
	return (*store.Snapshot)(nil).With(whole)
}

// deltaFrom makes a delta of rows; a nil value removes the row.
func deltaFrom(rows map[string][]byte) store.Delta {
	var d store.Delta
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		if value := rows[row]; value != nil {
			d.Put = append(d.Put, store.Row{Key: row, Value: value})
		} else {
			d.Remove = append(d.Remove, row)
		}
	}
	return d
}

// Pairs yields keys and values of rows, as a fold takes them.
func Pairs(rows iter.Seq[store.Row]) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for r := range rows {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

// World returns the world of a content.
func World(s *store.Snapshot) (*world.World, error) {
	rows := make([]world.RowChange, 0, s.Len())
	for row := range s.Rows() {
		rows = append(rows, world.RowChange{Row: row.Key, Value: row.Value})
	}
	w, _, err := world.NewWorld().Apply(world.Change{Rows: rows})
	return w, err
}
