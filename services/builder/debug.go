package builder

import (
	"context"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
)

// FoldState is the state of the fold, for the debug page.
type FoldState struct {
	Position ident.Position
	Segment  fold.Segment
	Counts   fold.Counts
	Shards   []fold.ShardState
	// Backlog is how many records were read and not folded: a standby waits for
	// the leader's next version.
	Backlog int
}

// FoldState returns the state of the fold. It waits for the builder's goroutine,
// until ctx is done. Safe for concurrent use.
func (b *Builder) FoldState(ctx context.Context) (FoldState, error) {
	return ask(ctx, b, func(m *Machine) FoldState {
		f := m.ledger.Fold()
		return FoldState{Position: f.Position(), Segment: f.Segment(), Counts: f.Counts(), Shards: f.Shards(), Backlog: m.Backlog()}
	})
}
