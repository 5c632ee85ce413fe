package fold

import (
	"iter"
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
)

// Row is a row of a checkpoint: the bytes of a snapshotv1.FoldRow.
type Row struct {
	Key   string
	Value []byte
}

// Checkpoint is the change of a fold's rows since the last checkpoint.
type Checkpoint struct {
	// Reset: Put holds all rows, earlier rows are void.
	Reset  bool
	Put    []Row    // sorted by key
	Remove []string // sorted; some of them may never have been stored
}

// unsaved notes what changed since the last checkpoint, unless the next one is
// whole.
type unsaved struct {
	whole    bool
	round    uint64      // of checkpoints; an entry that has it is in keys
	keys     []ident.Key // a key comes twice if its entry was removed and made again
	shards   map[ident.Shard]struct{}
	overlays map[string]struct{}
	waiting  map[uint64]*staged // nil: no longer staged
}

func (u *unsaved) rewrite() { *u = unsaved{whole: true, round: u.round + 1} }

func (u *unsaved) forget() {
	*u = unsaved{
		round:    u.round + 1,
		shards:   map[ident.Shard]struct{}{},
		overlays: map[string]struct{}{},
		waiting:  map[uint64]*staged{},
	}
}

func (u *unsaved) entry(e *entry) {
	if !u.whole && e.unsaved != u.round {
		e.unsaved = u.round
		u.keys = append(u.keys, e.key)
	}
}

func (u *unsaved) shard(sh *shard) {
	if !u.whole {
		u.shards[sh.name] = struct{}{}
	}
}

func (u *unsaved) overlay(id string) {
	if !u.whole {
		u.overlays[id] = struct{}{}
	}
}

func (u *unsaved) staged(seq uint64, r *staged) {
	if !u.whole {
		u.waiting[seq] = r
	}
}

// Checkpoint returns the change of the fold's rows since the last call. The first
// one is whole, and so is the one after a segment.
func (f *Fold) Checkpoint() Checkpoint {
	c := Checkpoint{Reset: f.unsaved.whole}
	rows := f.unsavedRows()
	if c.Reset {
		rows = f.rows()
	}
	f.unsaved.forget()
	for key, b := range rows.sorted() {
		if b != nil {
			c.Put = append(c.Put, Row{key, b})
		} else {
			c.Remove = append(c.Remove, key)
		}
	}
	return c
}

// Rewrite makes the next Checkpoint a whole one. Call it if the earlier ones were
// not written, or to another place.
func (f *Fold) Rewrite() { f.unsaved.rewrite() }

// Rows yields all rows, sorted by key. The fold must not change while the caller
// iterates.
func (f *Fold) Rows() iter.Seq2[string, []byte] { return f.rows().sorted() }

// encoders are the functions that encode rows, by their keys. Such a function
// returns nil if the row is gone.
type encoders map[string]func() []byte

// sorted yields the rows, sorted by key.
func (rows encoders) sorted() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			if !yield(key, rows[key]()) {
				return
			}
		}
	}
}

// rows returns the fold's rows.
func (f *Fold) rows() encoders {
	rows := f.state.rows()
	rows[metaRow] = f.metaBytes
	return rows
}

// rows returns all rows but the one of the position.
func (s *state) rows() encoders {
	rows := encoders{}
	for name, sh := range s.shards {
		rows[shardRow(name)] = sh.bytes
		for _, e := range sh.entries {
			rows[keyRow(e.row)] = e.bytes
		}
		for _, r := range sh.staged {
			rows[stagedRow(r.seq)] = r.bytes
		}
	}
	for _, r := range s.acts {
		rows[stagedRow(r.seq)] = r.bytes
	}
	for id := range s.gone {
		rows[overlayRow(id)] = func() []byte { return s.overlayBytes(id) }
	}
	for id := range s.overlays {
		rows[overlayRow(id)] = func() []byte { return s.overlayBytes(id) }
	}
	return rows
}

// unsavedRows returns those of the rows that changed since the last checkpoint.
func (f *Fold) unsavedRows() encoders {
	rows := encoders{metaRow: f.metaBytes}
	for _, k := range f.unsaved.keys {
		rows[keyRow(k.Row())] = func() []byte {
			if e := f.entry(k); e != nil {
				return e.bytes()
			}
			return nil
		}
	}
	for name := range f.unsaved.shards {
		rows[shardRow(name)] = f.shards[name].bytes
	}
	for id := range f.unsaved.overlays {
		rows[overlayRow(id)] = func() []byte { return f.overlayBytes(id) }
	}
	for seq, r := range f.unsaved.waiting {
		rows[stagedRow(seq)] = r.bytes
	}
	return rows
}
