package builder

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/store"
)

// traced notes to which trace a record belongs that changed something.
func (t *timing) traced(rec events.Record) {
	if c := rec.Event.Trace; c != "" && len(t.traces) < tracing.MaxContexts && !slices.Contains(t.traces, c) {
		t.traces = append(t.traces, c)
	}
}

// trace makes spans of the stages that a version has passed, and begins that of
// its publishing, which the caller ends: children of the first change in it. The
// manifest carries the contexts on.
func (m *Machine) trace(man *store.Manifest) trace.Span {
	man.Traceparents = slices.Clone(m.since.traces)
	tracer := m.cfg.Tracer
	if m.since.read.IsZero() {
		tracer = nil // no change caused it
	}
	var parent trace.SpanContext
	if len(m.since.traces) > 0 {
		parent = tracing.Context(m.since.traces[0])
	}
	holdoff := tracer.Start("holdoff", m.since.read, parent)
	tracing.End(holdoff, m.since.due, nil)
	if !parent.IsValid() { // an operator's word, say
		parent = holdoff.SpanContext()
	}
	tracing.End(tracer.Start("build", m.since.due, parent), m.since.built, nil)
	publish := tracer.Start("publish", m.since.built, parent)
	if publish.IsRecording() {
		publish.SetAttributes(
			attribute.String("version", store.VersionOf(man.GetVersion()).String()), attribute.Int64("positions", int64(published.Positions(man))),
			attribute.Int64("keys", int64(man.GetChangeCount())), attribute.String("cause", published.Cause(man)),
		)
		tracing.Link(publish, m.since.traces[min(1, len(m.since.traces)):])
	}
	if own := tracing.Traceparent(publish.SpanContext()); own != "" {
		man.Traceparents = append([]string{own}, man.Traceparents[min(1, len(man.Traceparents)):]...)
	}
	return publish
}
