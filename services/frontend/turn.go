package frontend

import "sync/atomic"

// turn lets one goroutine at a time work for a stream. Who wants work done
// takes the turn and does it; or leaves it to the one who has the turn, and
// then looks again before it gives the turn back. The zero turn is free.
type turn struct {
	state atomic.Uint32
	done  chan struct{} // of end
}

const (
	turnFree uint32 = iota
	turnTaken
	turnAgain // taken, and something came since
	turnOver
)

// take says whether the caller has the turn now.
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

// keep says whether something came since the caller took the turn or last
// asked. If not, the turn is given back.
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

// end lets nobody take the turn any more, and waits for the one who has it. It
// is called once.
func (t *turn) end() {
	t.done = make(chan struct{})
	if t.state.Swap(turnOver) != turnFree {
		<-t.done
	}
}
