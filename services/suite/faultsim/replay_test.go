package faultsim

import (
	"context"
	"iter"

	"meshlog.dev/events"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// checkpoint is a fold that a builder stored. The zero checkpoint is an empty fold.
type checkpoint struct {
	build string
	file  *memstore.File
}

func (c checkpoint) rows(yield func(string, []byte) bool) {
	if c.file == nil {
		return
	}
	for r, err := range memstore.Open(c.file, store.Retention{}).Side(context.Background()) {
		if err != nil {
			panic(err)
		}
		if !yield(r.Key, r.Value) {
			return
		}
	}
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func rowSeq(rows []store.Row) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, r := range rows {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

// replay folds the log from a checkpoint to its end. The content at every record
// must be the one that all builders made.
func (s *sim) replay(c checkpoint) {
	f, err := fold.Restore(c.build, s.judge(c.build), c.rows)
	if err != nil {
		fail("M3", "a checkpoint of build %s cannot be read: %v", c.build, err)
	}
	at := f.Position()
	if at.Seq > s.last() {
		return
	}
	if at.Seq > 0 {
		if s.records()[at.Seq-1].Hash != f.RecordHash() {
			return // the checkpoint belongs to a log that was rewound
		}
	}
	s.note("replay of build %s from %s", c.build, at)
	content := (*store.Snapshot)(nil).With(contentOf(f))
	for _, rec := range s.records()[at.Seq:] {
		change, _, err := f.Apply(rec, s.baseOf(f, rec))
		if err != nil {
			fail("M3", "replay of record %d: %v", rec.Seq, err)
		}
		if rec.Err != nil && (change.Reset || !change.IsEmpty()) {
			fail("SIM-9", "record %d is refused (%v) and changes the content", rec.Seq, rec.Err)
		}
		s.checkSigned(f, rec, change.Reset || !change.IsEmpty())
		switch {
		case change.Reset:
			content = (*store.Snapshot)(nil).With(contentOf(f))
		case !change.IsEmpty():
			rows := map[string][]byte{}
			for _, r := range change.Rows {
				rows[r.Row] = r.Value
			}
			var d store.Delta
			for k, v := range rows {
				if v == nil {
					d.Remove = append(d.Remove, k)
				} else {
					d.Put = append(d.Put, store.Row{Key: k, Value: v})
				}
			}
			content = content.With(d)
		}
		s.oneRoot(rec.Hash, c.build, content.Root(), f.Position())
	}
}

func contentOf(f *fold.Fold) store.Delta {
	var d store.Delta
	for _, r := range f.Content().Rows {
		d.Put = append(d.Put, store.Row{Key: r.Row, Value: r.Value})
	}
	return d
}

// baseOf reads the base that a segment names from the blobs.
func (s *sim) baseOf(f *fold.Fold, rec events.Record) iter.Seq2[string, []byte] {
	h, needs := f.NeedsBase(rec)
	if !needs {
		return nil
	}
	ctx := context.Background()
	b, err := s.chain.GetBlob(ctx, h)
	if err != nil {
		fail("M3", "the base of segment %d: %v", rec.Seq, err)
	}
	c, err := store.DecodeCheckpoint(b)
	if err != nil {
		fail("M3", "the base of segment %d: %v", rec.Seq, err)
	}
	rows, err := store.ReadRows(ctx, s.chain, c)
	if err != nil {
		fail("M3", "the base of segment %d: %v", rec.Seq, err)
	}
	return rowSeq(rows)
}
