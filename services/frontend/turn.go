package frontend

import "sync/atomic"

// turn lets one goroutine at a time work for a stream. A goroutine that finds
// the turn taken leaves a mark, and the one that has the turn looks again
// before it gives the turn back. The zero turn is free.
type turn struct {
	state atomic.Uint32
	done  chan struct{} // closed when end may return
}

const (
	turnFree uint32 = iota
	turnTaken
	turnAgain // taken, and another goroutine asked since
	turnOver
)

// take reports whether the caller has the turn now.
func (t *turn) take() bool {
	for {
		switch {
		case t.state.CompareAndSwap(turnFree, turnTaken):
			return true
		case t.state.CompareAndSwap(turnTaken, turnAgain), t.state.Load() == turnAgain, t.state.Load() == turnOver:
			return false
		}
	}
}

// keep reports whether another goroutine asked for the turn since the caller
// took it or last called keep. If not, the turn is free again.
func (t *turn) keep() bool {
	for {
		switch {
		case t.state.CompareAndSwap(turnAgain, turnTaken):
			return true
		case t.state.CompareAndSwap(turnTaken, turnFree):
			return false
		case t.state.Load() == turnOver:
			close(t.done)
			return false
		}
	}
}

// end lets no goroutine take the turn any more, and waits for the one that has
// it. It is called once.
func (t *turn) end() {
	t.done = make(chan struct{})
	if t.state.Swap(turnOver) != turnFree {
		<-t.done
	}
}
