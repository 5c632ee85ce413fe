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

// How long a new stream waits at the gate before it is refused. A client that
// was served before works on meanwhile, and a gRPC one that is refused would
// come back in 2 ms (G12); one that is new is better off with another frontend.
const (
	coldWait     = 5 * time.Second
	resumingWait = 15 * time.Second
)

// gateStep is how often the gate looks for tokens while somebody waits.
const admissionStep = 10 * time.Millisecond

// gate bounds what new streams cost those that are there: so many begin in a
// second, with bursts of as many, and so many are at their first answers at a
// time. Who has to wait waits in turn, clients that resume before those that
// are new.
type admission struct {
	perSecond int
	places    int
	metrics   *Metrics

	mu      sync.Mutex
	tokens  float64
	last    time.Time
	free    int                // places
	waiting [2][]chan struct{} // resuming, cold; closed when it is their turn
	timer   *time.Timer        // runs while somebody waits for a token
}

func newAdmission(l Limits, m *Metrics) *admission {
	return &admission{
		perSecond: l.StreamsPerSecond, places: l.FirstAnswers, metrics: m,
		tokens: float64(l.StreamsPerSecond), free: l.FirstAnswers,
	}
}

// state is how many streams wait, and how many are at their first answers.
func (g *admission) state() (waiting, first int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting[0]) + len(g.waiting[1]), g.places - g.free
}

// enter returns when a stream may begin; leave gives its place back. It refuses
// one for which there will be no place in time, at once where that is plain.
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

// giveUp ends the waiting; err is why. It is nil if the turn has come meanwhile.
func (g *admission) stopWaiting(class int, turn chan struct{}, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting[class], turn)
	if i < 0 {
		return nil
	}
	g.waiting[class] = slices.Delete(g.waiting[class], i, i+1)
	g.count()
	return err
}

// leave gives the place of a stream back.
func (g *admission) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	g.admit(time.Now())
}

// admit lets in who may begin now; mu is held.
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
	g.count()
}

// next lets the first one in line in, if there is one; mu is held.
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

// count says how many wait, and how many are in; mu is held.
func (g *admission) count() {
	g.metrics.waiting.Set(float64(len(g.waiting[0]) + len(g.waiting[1])))
	g.metrics.firstAnswers.Set(float64(g.places - g.free))
}
