package fold

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Clone returns a fold in the same state. They share values, which are immutable: what is
// applied to one changes nothing of the other. It costs a few hundred nanoseconds for each
// key. The first Checkpoint of the clone is whole.
func (f *Fold) Clone() *Fold {
	c := *f
	c.state = f.state.clone()
	c.unsaved = unsaved{}
	c.unsaved.rewrite()
	for _, sh := range c.shards {
		for _, e := range sh.entries {
			e.unsaved = 0
		}
	}
	return &c
}

func (s *state) clone() state {
	c := *s
	entries := map[*entry]*entry{}
	c.shards = make(map[ident.Shard]*shard, len(s.shards))
	for name, sh := range s.shards {
		c.shards[name] = sh.clone(entries)
	}
	troubled := func(of map[ident.Key]*entry) map[ident.Key]*entry {
		all := make(map[ident.Key]*entry, len(of))
		for k, e := range of {
			all[k] = entries[e]
		}
		return all
	}
	c.withheld, c.troubled = troubled(s.withheld), troubled(s.troubled)

	overlays := make(map[*overlay]*overlay, len(s.overlays))
	for _, o := range s.overlays {
		n := *o
		n.values, n.resources = maps.Clone(o.values), slices.Clone(o.resources)
		overlays[o] = &n
	}
	named := func(of map[string]*overlay) map[string]*overlay {
		all := make(map[string]*overlay, len(of))
		for id, o := range of {
			all[id] = overlays[o]
		}
		return all
	}
	c.overlays, c.scoped, c.pins, c.rollouts = named(s.overlays), named(s.scoped), named(s.pins), named(s.rollouts)
	c.over = make(map[ident.Key][]*overlay, len(s.over))
	for k, all := range s.over {
		for _, o := range all {
			c.over[k] = append(c.over[k], overlays[o])
		}
	}
	c.acts, c.gone, c.signed = slices.Clone(s.acts), maps.Clone(s.gone), maps.Clone(s.signed)
	return c
}

// clone notes in entries which entry of the clone is which.
func (sh *shard) clone(entries map[*entry]*entry) *shard {
	c := *sh
	c.FoldShard = proto.Clone(sh.FoldShard).(*snapshotv1.FoldShard)
	c.arrived, c.indexes, c.staged = maps.Clone(sh.arrived), maps.Clone(sh.indexes), slices.Clone(sh.staged)
	c.byKind = make(map[string]*ofKind, len(sh.byKind))
	for kind, of := range sh.byKind {
		n := *of
		c.byKind[kind] = &n
	}
	c.entries = make(map[ident.Key]*entry, len(sh.entries))
	all := make([]entry, 0, len(sh.entries))
	for k, e := range sh.entries {
		all = append(all, *e)
		n := &all[len(all)-1]
		n.problems = slices.Clone(e.problems)
		c.entries[k], entries[e] = n, n
	}
	return &c
}
