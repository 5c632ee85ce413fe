package watcher

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"meshlog.dev/services/internal/tracing"
)

// trace makes two spans of changes that are sent together, "observe" and
// "publish"; the events carry the context of the second. Changes that belong to a
// trace of their source get spans of their own. The caller calls ended once it
// has sent them. trace returns the context of the first change.
func (p *Publisher) trace(changes []change) (traceparent string, ended func(error)) {
	if p.cfg.Tracer == nil || len(changes) == 0 {
		return "", func(error) {}
	}
	of := map[string]*published{} // by the source's trace
	for i := range changes {
		c := &changes[i].object
		t := of[c.Trace]
		switch {
		case t != nil:
			t.keys++
		case len(of) == tracing.MaxContexts:
			continue // it keeps the context of its source
		default:
			t = p.observed(c)
			of[c.Trace] = t
		}
		if own := tracing.Traceparent(t.span.SpanContext()); own != "" {
			c.Trace = own
		}
	}
	return changes[0].object.Trace, func(err error) {
		now := p.in.Now()
		for _, t := range of {
			t.span.SetAttributes(attribute.Int("keys", t.keys))
			tracing.End(t.observe, t.seen, nil)
			tracing.End(t.span, now, err)
		}
	}
}

// published counts the changes of one trace that are sent together.
type published struct {
	observe, span trace.Span
	seen          time.Time // when they are sent
	keys          int
}

// observed begins the spans of a change and of those that come with it.
func (p *Publisher) observed(o *Object) *published {
	now := p.in.Now()
	since := o.Observed
	if since.IsZero() || since.After(now) {
		since = now
	}
	about := []attribute.KeyValue{
		attribute.String("shard", p.cfg.Shard.String()), attribute.String("key", p.key(*o).String()),
		attribute.String("origin", o.Origin), attribute.String("actor", o.Actor),
	}
	observe := p.cfg.Tracer.Start("observe", since, tracing.Context(o.Trace), about...)
	return &published{
		observe: observe, seen: now, keys: 1,
		span: p.cfg.Tracer.Start("publish", now, observe.SpanContext(), about[:2]...),
	}
}
