package fold

import (
	"iter"
	"maps"
	"slices"
	"strings"

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
	var c Checkpoint
	if f.unsaved.whole {
		c.Reset = true
		for k, v := range f.Rows() {
			c.Put = append(c.Put, Row{k, v})
		}
		f.unsaved.forget()
		return c
	}
	set := func(key string, value []byte) {
		if value == nil {
			c.Remove = append(c.Remove, key)
		} else {
			c.Put = append(c.Put, Row{key, value})
		}
	}
	set(metaRow, f.metaBytes())
	saved := make(map[ident.Key]struct{}, len(f.unsaved.keys))
	for _, k := range f.unsaved.keys {
		if _, again := saved[k]; again {
			continue
		}
		saved[k] = struct{}{}
		if e := f.entry(k); e != nil {
			set(keyRow(e.row), marshalRow(wrapKey(e.proto())))
		} else {
			set(keyRow(k.Row()), nil)
		}
	}
	for name := range f.unsaved.shards {
		set(shardRow(name), marshalRow(wrapShard(f.shards[name].proto())))
	}
	for id := range f.unsaved.overlays {
		set(overlayRow(id), f.overlayBytes(id))
	}
	for seq, r := range f.unsaved.waiting {
		if r == nil {
			set(stagedRow(seq), nil)
		} else {
			set(stagedRow(seq), r.bytes())
		}
	}
	f.unsaved.forget()
	slices.SortFunc(c.Put, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	slices.Sort(c.Remove)
	return c
}

// Rewrite makes the next Checkpoint a whole one. Call it if the earlier ones were
// not written, or to another place.
func (f *Fold) Rewrite() { f.unsaved.rewrite() }

// Rows returns all rows, sorted by key. The fold must not change while the
// caller iterates.
func (f *Fold) Rows() iter.Seq2[string, []byte] {
	rows := map[string]func() []byte{metaRow: f.metaBytes}
	for name, sh := range f.shards {
		rows[shardRow(name)] = func() []byte { return marshalRow(wrapShard(sh.proto())) }
		for _, e := range sh.entries {
			rows[keyRow(e.row)] = func() []byte { return marshalRow(wrapKey(e.proto())) }
		}
		for _, r := range sh.staged {
			rows[stagedRow(r.seq)] = r.bytes
		}
	}
	for id := range f.gone {
		rows[overlayRow(id)] = func() []byte { return f.overlayBytes(id) }
	}
	for id := range f.overlays {
		rows[overlayRow(id)] = func() []byte { return f.overlayBytes(id) }
	}
	return func(yield func(string, []byte) bool) {
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			if !yield(key, rows[key]()) {
				return
			}
		}
	}
}
