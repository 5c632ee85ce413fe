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

// traced notes the trace of a record that changed something.
func (s *since) traced(rec events.Record) {
	if c := rec.Event.Trace; c != "" && len(s.traces) < tracing.MaxContexts && !slices.Contains(s.traces, c) {
		s.traces = append(s.traces, c)
	}
}

// trace makes spans of the stages that a version has passed, as children of its
// first change, and begins the span of its publishing, which the caller ends.
// It puts the trace contexts into the manifest.
func (s *since) trace(tracer *tracing.Tracer, man *store.Manifest) trace.Span {
	man.Traceparents = slices.Clone(s.traces)
	if s.read.IsZero() {
		tracer = nil // no change caused it
	}
	var parent trace.SpanContext
	if len(s.traces) > 0 {
		parent = tracing.Context(s.traces[0])
	}
	holdoff := tracer.Start("holdoff", s.read, parent)
	tracing.End(holdoff, s.due, nil)
	if !parent.IsValid() { // for example an operator's overlay
		parent = holdoff.SpanContext()
	}
	tracing.End(tracer.Start("build", s.due, parent), s.built, nil)
	publish := tracer.Start("publish", s.built, parent)
	if publish.IsRecording() {
		publish.SetAttributes(
			attribute.String("version", store.VersionOf(man.GetVersion()).String()), attribute.Int64("positions", int64(published.Positions(man))),
			attribute.Int64("keys", int64(man.GetChangeCount())), attribute.String("cause", published.Cause(man)),
		)
		tracing.Link(publish, s.traces[min(1, len(s.traces)):])
	}
	if own := tracing.Traceparent(publish.SpanContext()); own != "" {
		man.Traceparents = append([]string{own}, man.Traceparents[min(1, len(man.Traceparents)):]...)
	}
	return publish
}
