package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// stages are the spans of a change from its observation to its ACKs, each after
// its parent.
var stages = []struct{ name, parent string }{
	{"watcher/observe", ""},
	{"watcher/publish", "watcher/observe"},
	{"builder/holdoff", "watcher/publish"},
	{"builder/build", "watcher/publish"},
	{"builder/publish", "watcher/publish"},
	{"frontend/receive", "builder/publish"},
	{"frontend/push", "frontend/receive"},
	{"frontend/ack", "frontend/receive"},
}

// A saved file makes one trace across all processes, even when one of them dies
// on the way.
func TestTrace(t *testing.T) {
	t.Run("up", func(t *testing.T) {
		f, traces := traced(t, rig.Up)
		f.shift(50, 50)
		first := f.trace(traces)
		f.shift(0, 100)
		if second := f.trace(traces); second == first {
			t.Errorf("two saves share one trace, %s", first)
		}
	})
	t.Run("apart, and the leader dies", func(t *testing.T) {
		f, traces := traced(t, apart(2, 1))
		f.shift(50, 50)
		f.trace(traces)
		f.leader().Kill()
		f.shift(0, 100)
		f.trace(traces)
	})
}

// traced starts a mesh in which all processes export traces.
func traced(t *testing.T, arranged arrangement) (*fixture, *rig.Traces) {
	t.Helper()
	traces, err := rig.StartTraces()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Stop)
	t.Setenv("MESHLOG_TRACE_ENDPOINT", traces.URL())
	return start(t, arranged), traces
}

// trace waits for the trace of the version that Envoy acknowledged last, demands
// that it has all stages, and returns its id.
func (f *fixture) trace(traces *rig.Traces) string {
	f.Helper()
	var spans map[string]rig.Span
	f.must(program.Until(f.ctx, "the trace of version "+f.seen.String(), func(context.Context) error {
		all, err := traces.Spans()
		if err != nil {
			return err
		}
		spans, err = traceOf(f.seen, all)
		return err
	}))
	for _, s := range stages {
		span, parent := spans[s.name], spans[s.parent]
		if span.Parent != parent.SpanID {
			f.Errorf("%s is a child of %q, want %s (%s)", s.name, span.Parent, s.parent, parent.SpanID)
		}
		if span.Failed || span.End.Before(span.Start) || span.Start.Before(parent.Start) {
			f.Errorf("%s from %s to %s, failed: %t; its parent began at %s", s.name, span.Start, span.End, span.Failed, parent.Start)
		}
	}
	if key := spans["watcher/observe"].Attributes["key"]; !strings.Contains(key, "VirtualService") {
		f.Errorf("the observed object is %q, want a VirtualService", key)
	}
	ack := spans["frontend/ack"]
	if a := ack.Attributes; a["acked"] != a["responses"] || a["acked"] == "0" || a["first_proxy"] != node {
		f.Errorf("ack has %v, want one or more responses, all acknowledged, the first by %s", a, node)
	}
	if n := len(ack.Events); n != 4 || ack.End.Sub(ack.Events[3].Time).Abs() > time.Millisecond {
		f.Errorf("ack ends at %s, its %d events are %v; want the events of 0, 50, 95 and 100 %%", ack.End, n, ack.Events)
	}
	return ack.TraceID
}

// traceOf returns the trace of a version, by role and name.
func traceOf(v rig.Version, all []rig.Span) (map[string]rig.Span, error) {
	of := func(s rig.Span) bool { return s.Name == "ack" && s.Attributes["version"] == v.String() }
	i := slices.IndexFunc(all, of)
	if i < 0 {
		return nil, fmt.Errorf("none of %d spans is an ACK of this version", len(all))
	}
	spans := map[string]rig.Span{}
	for _, s := range all {
		if s.TraceID == all[i].TraceID {
			spans[s.Role+"/"+s.Name] = s
		}
	}
	for _, s := range stages {
		if _, ok := spans[s.name]; !ok {
			return nil, fmt.Errorf("trace %s has no %s yet", all[i].TraceID, s.name)
		}
	}
	return spans, nil
}
