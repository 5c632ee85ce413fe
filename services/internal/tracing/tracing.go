// Package tracing makes one trace of what happens to a change on its way from
// its source to the proxies, whichever processes it passes. The context goes
// with the events on the log and with the manifests of versions, as W3C
// traceparents.
//
//	observe -> publish (watcher) -> holdoff, build, publish (builder) -> receive -> push, ack (frontend)
//
// Only what its source, or the watcher, has sampled is traced; a version is a
// child of the first change in it, and linked to the others.
//
// It needs OpenTelemetry's API, not its SDK: that is the process's.
package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// MaxContexts is how many traces one version is known to belong to.
const MaxContexts = 16

// header is the name of a traceparent among HTTP's headers.
const header = "traceparent"

// Context reads a traceparent. What is none is the zero, invalid, context.
func Context(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{header: traceparent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// Traceparent is the traceparent of a span, so that others are its children;
// empty where it is not sampled.
func Traceparent(c trace.SpanContext) string {
	if !c.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c), carrier)
	return carrier[header]
}

// Tracer makes the spans of one role. The nil Tracer traces nothing. It is safe
// for concurrent use.
type Tracer struct{ tracer trace.Tracer }

// New returns the tracer of a role, "builder" for example; nil where there is
// no provider.
func New(provider trace.TracerProvider, role string) *Tracer {
	if provider == nil {
		return nil
	}
	return &Tracer{provider.Tracer("meshlog.dev/" + role)}
}

// Start begins a span. An invalid parent makes it a root. The span may be ended
// at any time, also one that has passed.
func (t *Tracer) Start(name string, at time.Time, parent trace.SpanContext, attributes ...attribute.KeyValue) trace.Span {
	if t == nil {
		return trace.SpanFromContext(context.Background()) // records nothing
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attributes...))
	return span
}

// Link says that a span belongs to other traces as well.
func Link(span trace.Span, traceparents []string) {
	for _, t := range traceparents {
		if c := Context(t); c.IsValid() {
			span.AddLink(trace.Link{SpanContext: c})
		}
	}
}

// End ends a span; an error is why what it stands for failed.
func End(span trace.Span, at time.Time, err error) {
	if !span.IsRecording() {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(at))
}
