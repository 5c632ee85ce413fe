package shares

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

var (
	honest = ident.Shard{Source: "file", Instance: "default"}
	loud   = ident.Shard{Source: "file", Instance: "loud"}
)

// BUS-6: a shard that takes half of the log is named; records that expire no
// longer count.
func TestShares(t *testing.T) {
	s := New()
	s.Log(0, 100<<20, 1, 2*span)
	s.Add(1, honest, 1<<20)
	s.Add(2, ident.Shard{}, 60<<20) // of builders: no source to name
	s.Add(3, loud, 49<<20)
	if s.Of(loud) != 0 {
		t.Error("a count is given before all records are counted")
	}
	s.Add(2*span, loud, 1<<20)
	if got := s.Of(loud); got != 50<<20 {
		t.Errorf("%d bytes, want 50 MiB", got)
	}
	var r reportv1.BuilderReport
	s.Report(&r)
	if len(r.GetWarnings()) != 1 || !strings.HasPrefix(r.GetWarnings()[0], "file/loud takes 50 of the 100 MiB") || r.GetLogShares()[1].GetInstance() != "loud" {
		t.Errorf("warnings %q, shares %v; want one that names file/loud", r.GetWarnings(), r.GetLogShares())
	}
	s.Log(0, 200<<20, 1, 2*span) // the operator has made room
	if w := s.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q, want none: the log may hold more", w)
	}
	s.Log(0, 100<<20, span, 2*span) // the first records have expired
	if got := s.Of(loud); got != 1<<20 || s.Of(honest) != 0 {
		t.Errorf("%d bytes, want the 1 MiB that has not expired", got)
	}
	s.Reset()
	if s.Of(loud) != 0 || len(s.Warnings()) != 0 {
		t.Error("a count survives the log")
	}
}

// BUS-6: a watcher of all instances of a source writes under instances that do not
// exist, of any bytes. Its source is still counted and named, the report can be
// sent, and neither it nor the metrics grow without end.
func TestInventedInstances(t *testing.T) {
	s := New()
	s.Log(0, 100<<20, 1, 1)
	s.Add(1, honest, 40<<20)
	long := strings.Repeat("x", 4000)
	for n := range uint64(5000) {
		s.Add(2+n, events.ShardOf(events.Subject(fmt.Sprintf("kubernetes.=FF%d%s.x", n, long[:n%2*4000]))), 16<<10)
	}
	var r reportv1.BuilderReport
	s.Report(&r)
	if b, err := proto.Marshal(&r); err != nil || len(b) > 100<<10 {
		t.Errorf("the report has %d bytes, %v", len(b), err)
	}
	if w := r.GetWarnings(); len(w) != 1 || !strings.HasPrefix(w[0], "kubernetes/(others) takes ") {
		t.Errorf("warnings %q, want one that names the source", w)
	}
	if got := s.Of(honest); got != 40<<20 {
		t.Errorf("%s takes %d bytes, want 40 MiB", honest, got)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	if families, err := registry.Gather(); err != nil || len(families) != 1 || len(families[0].GetMetric()) > 100 {
		t.Errorf("metrics: %v", err)
	}
	few := New()
	few.Log(0, 100<<20, 1, 1)
	for n := range uint64(3) {
		few.Add(1+n, ident.Shard{Source: "kubernetes", Instance: fmt.Sprint(n)}, 20<<20)
	}
	if w := few.Warnings(); len(w) != 1 || !strings.HasPrefix(w[0], "kubernetes/* takes 60 of the 100 MiB") {
		t.Errorf("warnings %q, want one that names the source of three instances", w)
	}
	s.Log(0, 100<<20, 6000, 6000) // all have expired
	if s.Report(&r); len(s.spans) > 1 || len(s.sums) > 1000 {
		t.Errorf("%d spans and %d shards remain", len(s.spans), len(s.sums))
	}
}
