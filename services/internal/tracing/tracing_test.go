package tracing_test

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"meshlog.dev/services/internal/tracing"
)

const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestContext(t *testing.T) {
	if got := tracing.Traceparent(tracing.Context(sampled)); got != sampled {
		t.Errorf("%s comes back as %q", sampled, got)
	}
	for _, none := range []string{"", "00", "00-0-0-00", "00-00000000000000000000000000000000-b7ad6b7169203331-01"} {
		if c := tracing.Context(none); c.IsValid() {
			t.Errorf("%q is read as %v, want no context", none, c)
		}
	}
	unsampled := tracing.Context(sampled).WithTraceFlags(0)
	if got := tracing.Traceparent(unsampled); got != "" {
		t.Errorf("an unsampled context has traceparent %q, want none", got)
	}
}

// A span is sampled if its parent is. The sampler decides about a span without a
// parent.
func TestSampling(t *testing.T) {
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))), "test")
	for _, c := range []struct {
		name   string
		parent trace.SpanContext
		want   bool
	}{
		{"none", trace.SpanContext{}, false},
		{"sampled", tracing.Context(sampled), true},
		{"not sampled", tracing.Context(sampled).WithTraceFlags(0), false},
	} {
		span := tracer.Start("stage", time.Now(), c.parent)
		if span.SpanContext().IsSampled() != c.want || c.want && span.SpanContext().TraceID() != c.parent.TraceID() {
			t.Errorf("parent %s: the span is %v, want sampled: %t", c.name, span.SpanContext(), c.want)
		}
	}
}

// A nil tracer allocates nothing.
func TestOff(t *testing.T) {
	tracer := tracing.New(nil, "test")
	now := time.Now()
	allocations := testing.AllocsPerRun(100, func() {
		span := tracer.Start("stage", now, tracing.Context(""))
		tracing.Link(span, nil)
		tracing.End(span, now, nil)
	})
	if allocations != 0 {
		t.Errorf("a span of a nil tracer allocates %.0f times", allocations)
	}
}
