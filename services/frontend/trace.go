package frontend

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/published"
)

const (
	// A version has converged when every response that it caused was answered
	// and no other followed for settled; unsettled is the longest wait.
	settled   = time.Second
	unsettled = time.Minute
	// traceStep is how often open convergences are checked.
	traceStep = 250 * time.Millisecond
	// maxTraced is how many versions are traced at a time, and maxTimed how
	// many ACK times are kept of one.
	maxTraced = 16
	maxTimed  = 10_000
)

// tracer makes the spans of versions in this frontend.
type tracer struct {
	spans *tracing.Tracer // nil: none are made

	mu   sync.Mutex
	open []*convergence // the newest last
}

// received makes the receive span of a version and returns its convergence; nil
// if the version is not traced.
func (t *tracer) received(st *replica.State, had time.Time) *convergence {
	if t.spans == nil || len(st.Manifest.GetTraceparents()) == 0 || st.Received.IsZero() {
		return nil
	}
	parent := tracing.Context(st.Manifest.GetTraceparents()[0])
	span := t.spans.Start("receive", st.Received, parent, attribute.String("version", st.Version().String()),
		attribute.Int64("positions", int64(published.Positions(st.Manifest))), attribute.Int64("keys", int64(st.Manifest.GetChangeCount())))
	tracing.End(span, had, nil)
	if !span.SpanContext().IsSampled() {
		return nil
	}
	c := &convergence{tracer: t, parent: span.SpanContext(), version: st.Version().String(), had: had}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open = append(t.open, c); len(t.open) > maxTraced {
		t.open[0].end()
		t.open = slices.Delete(t.open, 0, 1)
	}
	return c
}

// run ends convergences that are over; when ctx is done, all.
func (t *tracer) run(ctx context.Context) error {
	if t.spans == nil {
		return nil
	}
	tick := time.NewTicker(traceStep)
	defer tick.Stop()
	for {
		over := func(*convergence) bool { return true }
		select {
		case now := <-tick.C:
			over = func(c *convergence) bool { return c.over(now) }
		case <-ctx.Done():
		}
		t.mu.Lock()
		t.open = slices.DeleteFunc(t.open, func(c *convergence) bool {
			if !over(c) {
				return false
			}
			c.end()
			return true
		})
		t.mu.Unlock()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// convergence records how one traced version reaches the proxies: the first
// response, and the last answer. A nil convergence ignores all calls.
type convergence struct {
	tracer  *tracer
	parent  trace.SpanContext
	version string
	had     time.Time

	mu                    sync.Mutex // protects what follows
	first, last           time.Time  // response, answer
	firstProxy, lastProxy string
	sent, acked, rejected int
	answers               []time.Duration // of ACKs, after first
	done                  bool
}

// response records that a response of the version is about to be sent.
func (c *convergence) response(t ident.ResourceType, proxy string) {
	if c == nil {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	if c.sent++; c.sent > 1 {
		return
	}
	c.first, c.firstProxy = now, proxy
	span := c.tracer.spans.Start("push", c.had, c.parent,
		attribute.String("version", c.version), attribute.String("type", t.String()), attribute.String("first_proxy", proxy))
	tracing.End(span, now, nil)
}

// answer records that the proxy answered one of them.
func (c *convergence) answer(proxy string, rejected bool) {
	if c == nil {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done || c.sent == 0 {
		return
	}
	c.last, c.lastProxy = now, proxy
	if rejected {
		c.rejected++
		return
	}
	c.acked++
	if len(c.answers) < maxTimed {
		c.answers = append(c.answers, now.Sub(c.first))
	}
}

// over reports whether no more answers are expected.
func (c *convergence) over(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent > 0 && c.acked+c.rejected >= c.sent {
		return now.Sub(c.last) >= settled
	}
	return now.Sub(c.had) >= unsettled
}

// end makes the ack span, from the first response to the last answer. Only the
// proxies at both ends are named.
func (c *convergence) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	if c.acked+c.rejected == 0 {
		return
	}
	span := c.tracer.spans.Start("ack", c.first, c.parent, attribute.String("version", c.version),
		attribute.Int("responses", c.sent), attribute.Int("acked", c.acked), attribute.Int("rejected", c.rejected),
		attribute.String("first_proxy", c.firstProxy), attribute.String("last_proxy", c.lastProxy))
	slices.Sort(c.answers)
	for _, percent := range []int{0, 50, 95, 100} {
		if n := len(c.answers); n > 0 {
			rank := max(0, int(math.Ceil(float64(n*percent)/100))-1)
			span.AddEvent("acked", trace.WithTimestamp(c.first.Add(c.answers[rank])), trace.WithAttributes(attribute.Int("percent", percent)))
		}
	}
	tracing.End(span, c.last, nil)
}
