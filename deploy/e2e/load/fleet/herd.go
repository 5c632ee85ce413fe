package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"
)

// HerdConfig describes a herd.
type HerdConfig struct {
	// Targets are the servers' addresses. The proxies start at the targets in
	// turn. A proxy that returns tries a random other target.
	Targets []string
	Nodes   [][]byte // the node of each proxy, encoded
	Names   Names    // names that all of them ask for
}

// Herd is proxies that reconnect whenever their stream has ended, as Envoys do:
// at once if the stream had an answer, otherwise after a growing pause. They use
// state of the world, and name the versions that they have unless they are told
// to forget them.
type Herd struct {
	phrases [types]phrase
	targets []string
	members []*member

	cancel  context.CancelFunc
	wg      sync.WaitGroup
	returns atomic.Pointer[Return]
	sent    atomic.Int64
	refused atomic.Int64
	failed  atomic.Int64
}

// Pauses of a member that got no answer: up to the first, then up to twice as
// long each time, as Envoy's backoff.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
)

// NewHerd connects all proxies at once. The Return ends when each has everything.
func NewHerd(ctx context.Context, c HerdConfig) (*Herd, *Return) {
	ctx, cancel := context.WithCancel(ctx)
	h := &Herd{targets: c.Targets, cancel: cancel}
	names := c.Names.byType()
	for _, t := range Types() {
		h.phrases[t] = phraseOf(SotW, t, names[t])
	}
	for i, node := range c.Nodes {
		h.members = append(h.members, &member{index: i, herd: h, node: node})
		h.members[i].target.Store(int64(i % len(c.Targets)))
	}
	r := h.Expect(AllTargets)
	for _, m := range h.members {
		h.wg.Go(func() { m.run(ctx) })
	}
	return h, r
}

// Close disconnects all proxies and waits for them.
func (h *Herd) Close() {
	h.cancel()
	h.wg.Wait()
}

// Bytes returns how many bytes all proxies have received.
func (h *Herd) Bytes() int64 { return h.sent.Load() }

// Refused returns how many streams a server refused.
func (h *Herd) Refused() int64 { return h.refused.Load() }

// Failed returns how many attempts found no server.
func (h *Herd) Failed() int64 { return h.failed.Load() }

// AllTargets stands for the members at every target.
const AllTargets = -1

// Return tracks the return of members.
type Return struct {
	at   []time.Time // by member; zero: still connected, or not back yet
	gone []bool
	left atomic.Int64
	done chan struct{}
}

// Expect begins the return of the members that are connected to a target. Call it
// before their streams end, and after the earlier Return has ended.
func (h *Herd) Expect(target int) *Return {
	r := &Return{at: make([]time.Time, len(h.members)), gone: make([]bool, len(h.members)), done: make(chan struct{})}
	for i, m := range h.members {
		if target == AllTargets || m.target.Load() == int64(target) {
			r.gone[i] = true
			r.left.Add(1)
		}
	}
	if r.left.Load() == 0 {
		close(r.done)
	}
	h.returns.Store(r)
	return r
}

// Forget makes the members that are connected to a target return without
// versions, as a restarted proxy does.
func (h *Herd) Forget(target int) {
	for _, m := range h.members {
		if target == AllTargets || m.target.Load() == int64(target) {
			m.forget.Store(true)
		}
	}
}

// Scatter ends all streams, and their connections, at once.
func (h *Herd) Scatter() {
	for _, m := range h.members {
		m.end.Load().end()
	}
}

// Wait waits until all expected members are back.
func (r *Return) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d proxies are not back: %w", r.left.Load(), len(r.at), context.Cause(ctx))
	}
}

// Took returns how long after start each member was back.
func (r *Return) Took(start time.Time) []time.Duration {
	var took []time.Duration
	for i, at := range r.at {
		if r.gone[i] {
			took = append(took, at.Sub(start))
		}
	}
	return took
}

// back notes that a member is back. Each member calls it for itself.
func (r *Return) back(i int) {
	if !r.gone[i] || !r.at[i].IsZero() {
		return
	}
	r.at[i] = time.Now()
	if r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// member is one proxy. Its goroutine owns all fields that are not atomic.
type member struct {
	index  int
	herd   *Herd
	node   []byte
	target atomic.Int64
	forget atomic.Bool
	end    atomic.Pointer[ender]

	versions [types]string // acknowledged; empty: none
	asked    Type          // the last type that the member asked for on this stream
	resuming bool
	answered bool
}

// ender ends one stream.
type ender struct{ end context.CancelFunc }

func (m *member) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		one, end := context.WithCancel(ctx)
		m.end.Store(&ender{end})
		if m.forget.Swap(false) {
			m.versions = [types]string{}
		}
		m.answered = false
		ready := m.converse(one)
		scattered := one.Err() != nil
		end()
		if !scattered {
			m.elsewhere()
		}
		switch {
		case m.answered || scattered:
			pause = firstPause
			continue
		case ready:
			m.herd.refused.Add(1)
		default:
			m.herd.failed.Add(1)
		}
		if !sleep(ctx, rand.N(pause)) {
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// elsewhere picks another target at random.
func (m *member) elsewhere() {
	if n := int64(len(m.herd.targets)); n > 1 {
		m.target.Store((m.target.Load() + 1 + rand.N(n-1)) % n)
	}
}

// converse asks and acknowledges until the stream ends, and reports whether there
// was a server.
func (m *member) converse(ctx context.Context) (ready bool) {
	conn, err := dial(m.herd.targets[m.target.Load()])
	if err != nil {
		return false
	}
	defer conn.Close()
	stream, err := open(ctx, conn, SotW)
	if err != nil {
		return conn.GetState() == connectivity.Ready
	}
	m.resuming = m.versions[RDS] != ""
	m.asked = CDS
	if m.resuming {
		m.asked = RDS
	}
	node := m.node
	for t := CDS; t <= m.asked; t++ {
		if err := stream.SendMsg(m.herd.phrases[t].resume(m.versions[t], node)); err != nil {
			break // receiving returns the error
		}
		node = nil
	}
	for {
		var r response
		if err := stream.RecvMsg(&r); err != nil {
			return conn.GetState() == connectivity.Ready || m.answered
		}
		m.answered = true
		if err := m.take(stream.SendMsg, &r); err != nil {
			return true
		}
	}
}

// take acknowledges a response. After the first response of a type, it asks for
// the next type.
func (m *member) take(send func(any) error, r *response) error {
	t := typeOf(r.typeURL)
	if t < 0 {
		return errors.New("received a type that it has not asked for")
	}
	h := m.herd
	h.sent.Add(int64(r.size))
	if err := send(h.phrases[t].acknowledge(SotW, r.version, r.nonce)); err != nil {
		return err
	}
	m.versions[t] = r.version
	if t == m.asked && t < RDS {
		m.asked++
		return send(h.phrases[m.asked].resume(m.versions[m.asked], nil))
	}
	if m.resuming || t == RDS {
		h.returns.Load().back(m.index)
	}
	return nil
}
