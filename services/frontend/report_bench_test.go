package frontend_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	. "meshlog.dev/services/mesh/meshtest"
)

// BenchmarkReport makes the reports of a frontend with 2000 streams: the full
// report, which is made on request, and the summary, which goes over the bus once a
// second while something changes, and otherwise every 10 s.
func BenchmarkReport(b *testing.B) {
	const streams = 2000
	m := newMesh(b)
	m.Publish(Put("a", Cluster("a", 1)), Put("e", Endpoints("a", 1)), Put("l", Listener("web", 10000, "routes")), Put("r", Routes("routes", To("a", 1))))
	f := start(b, "f1", m)
	conn := f.dial(nil)
	for i := range streams {
		e := connect(b, conn, node(fmt.Sprintf("web-%d.shop.svc.cluster.local", i), "web"))
		e.boot([]string{"a"}, []string{"a"}, "web", "routes")
	}
	f.until("all is acknowledged", func(r *reportv1.FrontendReport) bool {
		return len(r.GetProxies()) == streams && len(r.GetApplied()) == 1
	})
	for _, c := range []struct {
		name   string
		report func() *reportv1.FrontendReport
	}{{"whole", f.server.Report}, {"summary", f.server.Summary}} {
		b.Run(c.name, func(b *testing.B) {
			size := 0
			for b.Loop() {
				size = proto.Size(c.report())
			}
			b.ReportMetric(float64(size), "B/report")
		})
	}
}
