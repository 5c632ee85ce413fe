package builder

import (
	"context"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
)

// FoldState is where the fold stands, for people.
type FoldState struct {
	Position ident.Position
	Segment  fold.Segment
	Counts   fold.Counts
	Shards   []fold.ShardState
	// Backlog is how many records were read and are not folded: a standby waits
	// for the leader's next version.
	Backlog int
}

// FoldState says where the fold stands. It waits for the goroutine that owns
// it, until ctx is done. Safe for concurrent use.
func (b *Builder) FoldState(ctx context.Context) (FoldState, error) {
	answer := make(chan FoldState, 1)
	select {
	case b.looks <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return FoldState{}, ctx.Err()
	}
}

func (m *Machine) foldState() FoldState {
	return FoldState{
		Position: m.fold.Position(), Segment: m.fold.Segment(), Counts: m.fold.Counts(), Shards: m.fold.Shards(), Backlog: len(m.ahead),
	}
}
