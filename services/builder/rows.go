package builder

import (
	"crypto/rand"
	"encoding/hex"
	"iter"
	"maps"
	"slices"

	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

func rowSeq(rows []store.Row) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, r := range rows {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

func sortedRows(rows map[string][]byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, k := range slices.Sorted(maps.Keys(rows)) {
			if !yield(k, rows[k]) {
				return
			}
		}
	}
}

func contentSeq(s *store.Snapshot) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for r := range s.Rows() {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

// deltaFrom makes a delta of rows by key; a nil value removes.
func deltaFrom(rows map[string][]byte) store.Delta {
	var d store.Delta
	for k, v := range sortedRows(rows) {
		if v == nil {
			d.Remove = append(d.Remove, k)
		} else {
			d.Put = append(d.Put, store.Row{Key: k, Value: v})
		}
	}
	return d
}

// reset replaces the content by the rows of c.
func (m *Machine) reset(c world.Change) {
	var d store.Delta
	for _, r := range c.Rows {
		d.Put = append(d.Put, store.Row{Key: r.Row, Value: r.Value})
	}
	m.content = (*store.Snapshot)(nil).With(d)
	clear(m.behind)
	m.unbuilt = unbuilt{}
	m.unbuilt.add(c)
}

// unbuilt is what a world lags behind a fold. It is bounded by the content,
// however much of the log it stands for.
type unbuilt struct {
	reset     bool
	rows      map[string]world.RowChange // the newest of each
	records   int                        // that changed something
	endpoints int                        // of these, endpoints only
}

func (u *unbuilt) add(c world.Change) {
	if u.rows == nil || c.Reset {
		u.rows = map[string]world.RowChange{}
	}
	u.reset = u.reset || c.Reset
	u.records++
	if c.EndpointsOnly {
		u.endpoints++
	}
	for _, r := range c.Rows {
		u.rows[r.Row] = r
	}
}

// change is all of it as one.
func (u *unbuilt) change() world.Change {
	c := world.Change{Reset: u.reset, EndpointsOnly: u.endpoints == u.records}
	for _, row := range slices.Sorted(maps.Keys(u.rows)) {
		if r := u.rows[row]; r.Value != nil || !u.reset {
			c.Rows = append(c.Rows, r)
		}
	}
	return c
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
