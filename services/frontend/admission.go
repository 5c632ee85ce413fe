package frontend

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How long a new stream waits before it is refused. A client that was served
// before goes on working meanwhile, and a refused gRPC client would come back
// in 2 ms (G12). A new client should rather try another frontend.
const (
	coldWait     = 5 * time.Second
	resumingWait = 15 * time.Second
)

// admissionStep is how often tokens are added while streams wait.
const admissionStep = 10 * time.Millisecond

// coldShare is how many admissions have at least one new client among them, if
// one waits. A client that only claims to resume must not keep new ones out.
const coldShare = 5

// admission protects connected streams from the load of new ones: it limits how
// many begin in a second, with bursts of that size, and how many are in their
// first responses at a time. Streams wait in line, resuming clients before new
// ones, but for one of coldShare. Of one line, streams of the address that has the
// fewest places among the first responses come first, then those of the address with
// the fewest streams in line, so that no address takes all places.
type admission struct {
	perSecond int
	places    int

	mu      sync.Mutex
	tokens  float64
	last    time.Time
	free    int          // places
	waiting [2][]*waiter // resuming, cold
	resumed int          // admissions since the last new client
	timer   *time.Timer  // runs while a stream waits for a token
}

// Lines of an admission.
const (
	resumingLine = iota
	coldLine
)

// waiter is a stream in line.
type waiter struct {
	peer   *holder
	result chan error // nil: its turn has come; has room
}

func newAdmission(l Limits) *admission {
	return &admission{
		perSecond: l.StreamsPerSecond, places: l.FirstAnswers,
		tokens: float64(l.StreamsPerSecond), free: l.FirstAnswers,
	}
}

// state returns how many streams wait, and how many are in their first
// responses.
func (g *admission) state() (waiting, first int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting[resumingLine]) + len(g.waiting[coldLine]), g.places - g.free
}

// wait returns when a stream may begin; release gives its place back. It returns
// an error for a stream that would wait too long, at once if the line is too long
// already.
func (g *admission) wait(ctx context.Context, resuming bool, peer *holder) error {
	line, wait := coldLine, coldWait
	if resuming {
		line, wait = resumingLine, resumingWait
	}
	w := &waiter{peer: peer, result: make(chan error, 1)}
	g.mu.Lock()
	if !g.enter(line, w, int(float64(g.perSecond)*wait.Seconds())) {
		g.mu.Unlock()
		return g.refusal()
	}
	g.admit(time.Now())
	g.mu.Unlock()
	select {
	case err := <-w.result:
		return err
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case err := <-w.result:
		return err
	case <-timer.C:
		err = g.refusal()
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
	}
	return g.stopWaiting(line, w, err)
}

// enter puts a stream into a line of at most that length. In a full line, it takes
// the place of the last stream of the address that has the most in it, unless its
// own address has as many. mu is held.
func (g *admission) enter(line int, w *waiter, most int) bool {
	if len(g.waiting[line]) >= most {
		var longest *holder
		for _, other := range g.waiting[line] {
			if longest == nil || other.peer.waiting[line] > longest.waiting[line] {
				longest = other.peer
			}
		}
		if longest == nil || w.peer.waiting[line]+1 >= longest.waiting[line] {
			return false
		}
		for i, other := range slices.Backward(g.waiting[line]) {
			if other.peer == longest {
				g.leave(line, i)
				other.result <- g.refusal()
				break
			}
		}
	}
	g.waiting[line] = append(g.waiting[line], w)
	w.peer.waiting[line]++
	return true
}

// leave removes a stream from a line; mu is held.
func (g *admission) leave(line, i int) {
	g.waiting[line][i].peer.waiting[line]--
	g.waiting[line] = slices.Delete(g.waiting[line], i, i+1)
}

func (g *admission) refusal() error {
	return &limitError{"admission", status.Error(codes.Unavailable, fmt.Sprintf(
		"too many new streams: %d begin in a second and %d are at their first answers at a time; try another frontend, or later",
		g.perSecond, g.places))}
}

// stopWaiting takes a stream out of the line and returns err, or the result that
// came meanwhile.
func (g *admission) stopWaiting(line int, w *waiter, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting[line], w)
	if i < 0 {
		return <-w.result
	}
	g.leave(line, i)
	return err
}

// release gives the place of a stream of that address back.
func (g *admission) release(peer *holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	peer.places--
	g.admit(time.Now())
}

// admit lets in the streams that may begin now; mu is held.
func (g *admission) admit(now time.Time) {
	if !g.last.IsZero() {
		g.tokens = min(float64(g.perSecond), g.tokens+float64(g.perSecond)*max(0, now.Sub(g.last).Seconds()))
	}
	g.last = now
	for g.tokens >= 1 && g.free > 0 && g.next() {
		g.tokens--
		g.free--
	}
	if g.tokens < 1 && len(g.waiting[resumingLine])+len(g.waiting[coldLine]) > 0 {
		if g.timer == nil {
			g.timer = time.AfterFunc(admissionStep, g.refill)
		} else {
			g.timer.Reset(admissionStep)
		}
	}
}

// next lets in the next stream, if one waits; mu is held.
func (g *admission) next() bool {
	line := resumingLine
	if len(g.waiting[resumingLine]) == 0 || g.resumed >= coldShare-1 && len(g.waiting[coldLine]) > 0 {
		line = coldLine
	}
	if len(g.waiting[line]) == 0 {
		return false
	}
	first := 0
	for i, w := range g.waiting[line] {
		best := g.waiting[line][first].peer
		if cmp.Or(cmp.Compare(w.peer.places, best.places), cmp.Compare(w.peer.waiting[line], best.waiting[line])) < 0 {
			first = i
		}
	}
	w := g.waiting[line][first]
	g.leave(line, first)
	w.peer.places++
	w.result <- nil
	if g.resumed++; line == coldLine {
		g.resumed = 0
	}
	return true
}

func (g *admission) refill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(time.Now())
}
