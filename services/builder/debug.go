package builder

import (
	"context"

	"meshlog.dev/services/mesh/fold"
)

// FoldState is the state of the fold, for the debug page.
type FoldState struct {
	Position  string       `json:"position"`
	Epoch     uint64       `json:"epoch"`
	Build     string       `json:"build"`   // of the segment
	Backlog   int          `json:"backlog"` // records that wait for the leader's next version
	Keys      int          `json:"keys"`
	Overlays  int          `json:"overlays"`
	Strangers uint64       `json:"strangers"` // records of sessions that had ended
	Undecoded uint64       `json:"undecoded"`
	Shards    []ShardState `json:"shards"`
}

// ShardState is the state of a shard in the fold.
type ShardState struct {
	Shard     string `json:"shard"`
	State     string `json:"state"`
	Session   string `json:"session,omitempty"`
	Holder    string `json:"holder,omitempty"`
	MustList  string `json:"mustList,omitempty"` // the reason
	Keys      int    `json:"keys"`
	LastSeq   uint64 `json:"lastSeq"`
	Staged    int    `json:"staged"` // records that wait for the rest of their batch
	Strangers uint64 `json:"strangers"`
}

// FoldState returns the state of the fold. It waits for the builder's goroutine,
// until ctx is done. Safe for concurrent use.
func (b *Builder) FoldState(ctx context.Context) (FoldState, error) {
	return ask(ctx, b, (*Machine).foldState)
}

func (m *Machine) foldState() FoldState {
	f := m.ledger.Fold()
	segment, counts := f.Segment(), f.Counts()
	state := FoldState{
		Position: f.Position().String(), Epoch: segment.Epoch, Build: segment.Build, Backlog: m.Backlog(),
		Keys: counts.Keys, Overlays: counts.Overlays, Strangers: counts.Strangers, Undecoded: counts.Undecoded,
		Shards: []ShardState{},
	}
	for _, s := range f.Shards() {
		state.Shards = append(state.Shards, ShardState{
			Shard: s.Shard.String(), State: progress(s), Session: s.Session, Holder: s.Holder, MustList: s.Need,
			Keys: s.Keys, LastSeq: s.Seq, Staged: s.Staged, Strangers: s.Strangers,
		})
	}
	return state
}

// progress returns how far a shard has listed in this epoch.
func progress(s fold.ShardState) string {
	switch {
	case s.Listing:
		return "listing"
	case s.Synced:
		return "synced"
	case s.Partial:
		return "partial"
	}
	return "not listed in this epoch"
}
