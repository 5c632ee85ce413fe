package fold

import (
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// ShardState is the state of a shard, for people.
type ShardState struct {
	Shard ident.Shard
	// Session is the last one begun, by Holder; empty: none in this epoch.
	Session, Holder string
	// Listing: the session's records wait for the end of its listing. Synced: a
	// whole listing was closed in this epoch. Partial: the last listing could
	// not read everything.
	Listing, Synced, Partial bool
	// Need is why the shard must list again; empty: it need not.
	Need string
	// Seq is the last record that counted; Strangers counts the records of other
	// sessions.
	Seq, Strangers uint64
	// Frozen are the kinds that have keys and that the last listing did not
	// cover, sorted.
	Frozen []FrozenKind
	// Keys counts the offered keys; Staged the records that wait for the rest of
	// their change set.
	Keys, Staged int
}

// FrozenKind is a kind whose objects stay as they are.
type FrozenKind struct {
	Kind string
	Keys int
}

func (sh *shard) frozen() (frozen []FrozenKind) {
	for _, kind := range slices.Sorted(maps.Keys(sh.byKind)) {
		if !events.Kinds(sh.Kinds).Cover(kind) {
			frozen = append(frozen, FrozenKind{kind, sh.byKind[kind].keys})
		}
	}
	return frozen
}

// Shards returns the states of all shards, sorted.
func (f *Fold) Shards() []ShardState {
	var all []ShardState
	for _, sh := range f.inOrder() {
		all = append(all, ShardState{
			Shard: sh.name, Session: sh.Session, Holder: sh.Holder,
			Listing: sh.Listing, Synced: sh.Synced, Partial: sh.Partial, Need: sh.Need,
			Frozen: sh.frozen(), Seq: sh.Seq, Strangers: sh.Strangers, Keys: sh.keys(), Staged: len(sh.staged),
		})
	}
	return all
}
