package bus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// A report with many verdicts is sent in several messages, so that none is lost
// (XDS-4).
func TestReportIsSplit(t *testing.T) {
	const most = 64 << 10
	long := strings.Repeat("x", 10<<10)
	r := &reportv1.FrontendReport{Frontend: "f", Time: timestamppb.New(time.Unix(1, 2)), Streams: 7}
	for i := range 100 {
		r.Verdicts = append(r.Verdicts, &reportv1.Verdict{Name: fmt.Sprint("r", i), Client: "envoy", Message: long, Class: []byte(long), Rejected: uint32(i)})
	}
	r.Verdicts[50].Class = make([]byte, 2*most)
	var got []*reportv1.Verdict
	for i, part := range split(r, most) {
		p := part.(*reportv1.FrontendReport)
		if size := proto.Size(p); size > most {
			t.Errorf("message %d has %d bytes", i, size)
		}
		if p.GetFrontend() != "f" || p.GetStreams() != 7 || !p.GetTime().AsTime().Equal(time.Unix(1, 2)) {
			t.Errorf("message %d: %.100v", i, p)
		}
		got = append(got, p.GetVerdicts()...)
	}
	if len(got) != 100 {
		t.Fatalf("%d of 100 verdicts are sent", len(got))
	}
	for i, v := range got {
		if v.GetName() != fmt.Sprint("r", i) || v.GetRejected() != uint32(i) || (i == 50) != (v.GetClass() == nil) {
			t.Errorf("verdict %d: %.100v", i, v)
		}
	}
	small := &reportv1.FrontendReport{Frontend: "f"}
	if parts := split(small, most); len(parts) != 1 || parts[0] != proto.Message(small) {
		t.Errorf("a small report: %v", parts)
	}
}

// A report that cannot be sent is counted, and the next one is sent (XDS-4).
func TestLostReport(t *testing.T) {
	s := startServer(t, t.TempDir())
	reports := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", quiet)
	first := true
	r := f.FrontendReporter("f", func(bool) *reportv1.FrontendReport {
		report := &reportv1.FrontendReport{Frontend: "f"}
		if first {
			report.Frontend = "\xff"
		}
		first = false
		return report
	})
	r.Urgent()
	run(t, r.Run)
	<-reports
	if got := f.lost.Load(); got != 1 {
		t.Errorf("%d reports are counted as lost, want 1", got)
	}
}
