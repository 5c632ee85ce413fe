package frontend

import (
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

// admission protects connected streams from the load of new ones: it limits how
// many begin in a second, with bursts of that size, and how many are in their
// first responses at a time. Streams wait in line, resuming clients before new
// ones.
type admission struct {
	perSecond int
	places    int

	mu      sync.Mutex
	tokens  float64
	last    time.Time
	free    int                // places
	waiting [2][]chan struct{} // resuming, cold; closed when it is their turn
	timer   *time.Timer        // runs while a stream waits for a token
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
	return len(g.waiting[0]) + len(g.waiting[1]), g.places - g.free
}

// wait returns when a stream may begin; release gives its place back. It returns
// an error for a stream that would wait too long, at once if the line is too long
// already.
func (g *admission) wait(ctx context.Context, resuming bool) error {
	class, wait := 1, coldWait
	if resuming {
		class, wait = 0, resumingWait
	}
	turn := make(chan struct{})
	g.mu.Lock()
	if len(g.waiting[class]) >= int(float64(g.perSecond)*wait.Seconds()) {
		g.mu.Unlock()
		return g.refusal()
	}
	g.waiting[class] = append(g.waiting[class], turn)
	g.admit(time.Now())
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-turn:
		return nil
	case <-timer.C:
		err = g.refusal()
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
	}
	return g.stopWaiting(class, turn, err)
}

func (g *admission) refusal() error {
	return status.Error(codes.Unavailable, fmt.Sprintf(
		"too many new streams: %d begin in a second and %d are at their first answers at a time; try another frontend, or later",
		g.perSecond, g.places))
}

// stopWaiting takes a stream out of the line and returns err, or nil if its
// turn has come meanwhile.
func (g *admission) stopWaiting(class int, turn chan struct{}, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting[class], turn)
	if i < 0 {
		return nil
	}
	g.waiting[class] = slices.Delete(g.waiting[class], i, i+1)
	return err
}

// release gives the place of a stream back.
func (g *admission) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
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
	if g.tokens < 1 && len(g.waiting[0])+len(g.waiting[1]) > 0 {
		if g.timer == nil {
			g.timer = time.AfterFunc(admissionStep, g.refill)
		} else {
			g.timer.Reset(admissionStep)
		}
	}
}

// next lets in the first stream in line, if there is one; mu is held.
func (g *admission) next() bool {
	for class, line := range g.waiting {
		if len(line) > 0 {
			close(line[0])
			g.waiting[class] = slices.Delete(line, 0, 1)
			return true
		}
	}
	return false
}

func (g *admission) refill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(time.Now())
}
