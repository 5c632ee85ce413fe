package shares

import (
	"strings"
	"testing"

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
