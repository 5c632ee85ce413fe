package builder

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/store/memstore"
)

// traceparent returns the traceparent of trace n.
func traceparent(n int) string { return fmt.Sprintf("00-%032x-%016x-01", n, n) }

// A version belongs to the trace of its first change and is linked to the traces of
// the other changes. Its manifest carries these contexts, even if the builder
// exports no spans, or has just taken over.
func TestTrace(t *testing.T) {
	var other []string
	for n := 2; n <= tracing.MaxContexts; n++ {
		other = append(other, traceparent(n))
	}
	for _, c := range []struct {
		name          string
		traced, after bool // the builder makes spans; a standby takes over
	}{
		{"not traced", false, false}, {"traced", true, false}, {"traced, after a takeover", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, b := servingA(t)
			exporter := tracetest.NewInMemoryExporter()
			cfg := r.config("b1", "one", &memstore.File{})
			if c.traced {
				cfg.Tracer = tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)), "builder")
			}
			b.Lead(false)
			next := r.start(cfg, !c.after)
			next.settle()
			exporter.Reset()
			for n := 1; n <= tracing.MaxContexts+5; n++ {
				r.trace = traceparent(n)
				r.put(fmt.Sprint("k", n), "good")
				r.put(fmt.Sprint("l", n), "good")
			}
			next.settle()
			next.Lead(true)
			next.settle()
			versions := r.versions()
			got := versions[len(versions)-1].GetTraceparents()
			spans := exporter.GetSpans()
			want := append([]string{traceparent(1)}, other...)
			if c.traced {
				if len(spans) != 3 {
					t.Fatalf("%d spans, want holdoff, build, publish", len(spans))
				}
				want[0] = tracing.Traceparent(spans[2].SpanContext)
				for i, name := range []string{"holdoff", "build", "publish"} {
					if s := spans[i]; s.Name != name || !s.Parent.Equal(tracing.Context(traceparent(1)).WithRemote(true)) || s.EndTime.Before(s.StartTime) {
						t.Errorf("span %d is %s of %v, from %s to %s", i, s.Name, s.Parent, s.StartTime, s.EndTime)
					}
				}
				if n := len(spans[2].Links); n != len(other) {
					t.Errorf("%d links, want %d", n, len(other))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("traceparents of the manifest (-want +got):\n%s", diff)
			}
		})
	}
}
