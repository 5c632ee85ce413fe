package builder

import (
	"crypto/rand"
	"encoding/hex"
	"iter"
	"maps"
	"slices"

	"meshlog.dev/services/internal/model"
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

// reset makes rows all there is.
func (m *Machine) reset(rows iter.Seq2[string, []byte]) {
	var d store.Delta
	c := model.Change{Reset: true}
	for k, v := range rows {
		d.Put = append(d.Put, store.Row{Key: k, Value: v})
		c.Rows = append(c.Rows, model.RowChange{Row: k, Value: v})
	}
	m.content = (*store.Snapshot)(nil).With(d)
	m.changes = []model.Change{c}
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
