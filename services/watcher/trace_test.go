package watcher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/watcher"
)

// The source's own trace continues on the log, through the watcher's spans if it
// makes any. The trace of a listing is on the alive that closes it.
func TestTrace(t *testing.T) {
	const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	withTrace := func(trace string) watcher.Object {
		o := object("x", "2")
		o.Trace = trace
		return o
	}
	for _, c := range []struct {
		name   string
		traced bool
		object watcher.Object
		// want checks the trace on the log and the spans that end with the change.
		want  func(onLog string, spans tracetest.SpanStubs) bool
		spans int
	}{
		{"no tracer", false, object("x", "2"), func(onLog string, _ tracetest.SpanStubs) bool { return onLog == "" }, 0},
		{"only the source traces", false, withTrace(own), func(onLog string, _ tracetest.SpanStubs) bool { return onLog == own }, 0},
		{"the source's trace is malformed", false, withTrace("00-x"), func(onLog string, _ tracetest.SpanStubs) bool { return onLog == "" }, 0},
		{"only the watcher traces", true, object("x", "2"), func(onLog string, s tracetest.SpanStubs) bool {
			return onLog == tracing.Traceparent(s[1].SpanContext) && s[1].Parent.SpanID() == s[0].SpanContext.SpanID() && !s[0].Parent.IsValid()
		}, 2},
		{"both trace", true, withTrace(own), func(onLog string, s tracetest.SpanStubs) bool {
			return onLog == tracing.Traceparent(s[1].SpanContext) && s[0].Parent.Equal(tracing.Context(own).WithRemote(true))
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exporter := tracetest.NewInMemoryExporter()
				o := options{}
				if c.traced {
					o.tracer = tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)), "watcher")
				}
				s := newSource(map[string]string{"x": "1"})
				r := start(t, s, o)
				pass(time.Second)
				listing := exporter.GetSpans()
				if len(listing) != c.spans || c.traced && traceOn(t, r, 3) != tracing.Traceparent(listing[1].SpanContext) {
					t.Errorf("a listing has %d spans, the alive that closes it has trace %q", len(listing), traceOn(t, r, 3))
				}
				exporter.Reset()
				s.say <- func(ctx context.Context, sink watcher.Sink) error {
					if err := sink.Change(ctx, []watcher.Object{c.object}); err != nil {
						return err
					}
					return errGoOn
				}
				pass(time.Second)
				spans := exporter.GetSpans()
				if onLog := traceOn(t, r, 4); len(spans) != c.spans || !c.want(onLog, spans) {
					t.Errorf("the trace on the log is %q, the spans are %v", onLog, spans)
				}
				_ = r.stop()
			})
		})
	}
}

// traceOn returns the trace of a record.
func traceOn(t *testing.T, r *rig, seq uint64) string {
	t.Helper()
	rec, err := r.log.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Event.Trace
}
