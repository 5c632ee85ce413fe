// Package tracing records one trace for a change on its way from its source to
// the proxies, across processes. Events on the log and manifests of versions
// carry the trace context as W3C traceparents.
//
//	observe -> publish (watcher) -> holdoff, build, publish (builder) -> receive -> push, ack (frontend)
//
// The source of a change decides whether the change is traced, or else the
// watcher does. The spans of a version are children of its first change and are
// linked to the others.
//
// This package uses only OpenTelemetry's API. Package process sets up the SDK.
package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// MaxContexts limits the traces that a version is linked to.
const MaxContexts = 16

// header is the name of the HTTP header with a traceparent.
const header = "traceparent"

// Context parses a traceparent. It returns the zero context, which is invalid, if
// the text is not a traceparent.
func Context(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{header: traceparent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// Traceparent returns the traceparent of a span, or "" if the span is not sampled.
func Traceparent(c trace.SpanContext) string {
	if !c.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c), carrier)
	return carrier[header]
}

// Tracer starts the spans of one role. A nil Tracer records nothing. A Tracer is
// safe for concurrent use.
type Tracer struct{ tracer trace.Tracer }

// New returns the tracer of a role such as "builder", or nil if provider is nil.
func New(provider trace.TracerProvider, role string) *Tracer {
	if provider == nil {
		return nil
	}
	return &Tracer{provider.Tracer("meshlog.dev/" + role)}
}

// Start starts a span, which is a root if parent is invalid. End may give a time
// in the past.
func (t *Tracer) Start(name string, at time.Time, parent trace.SpanContext, attributes ...attribute.KeyValue) trace.Span {
	if t == nil {
		return trace.SpanFromContext(context.Background()) // records nothing
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attributes...))
	return span
}

// Link links a span to other traces.
func Link(span trace.Span, traceparents []string) {
	for _, t := range traceparents {
		if c := Context(t); c.IsValid() {
			span.AddLink(trace.Link{SpanContext: c})
		}
	}
}

// End ends a span. A non-nil err marks it as failed.
func End(span trace.Span, at time.Time, err error) {
	if !span.IsRecording() {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(at))
}
