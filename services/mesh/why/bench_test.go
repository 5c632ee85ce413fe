package why_test

import (
	"fmt"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/why"
)

// Questions about one service among many, each with an EndpointSlice.
func BenchmarkWhy(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		changes := meshtest.YAML(b, mesh)
		for i := range n {
			name := fmt.Sprintf("s%d", i)
			changes = append(changes, meshtest.Service("demo", name, "80 http"), meshtest.Slice("demo", name, "80 http", fmt.Sprintf("10.%d.%d.1", 1+i/250, i%250)))
		}
		w := meshtest.World(b, changes...)
		p := sidecar(b, "demo")
		for _, q := range []why.Question{
			{Type: ident.CDS, Resource: "outbound|80|v1|shop.example", Field: "connect_timeout"},
			{Type: ident.RDS, Resource: "80", Field: "virtual_hosts[shop.example:80].routes[0].route.timeout"},
		} {
			q.World, q.Proxy = w, p
			b.Run(fmt.Sprintf("%d/%s", n, q.Type), func(b *testing.B) {
				for b.Loop() {
					a, err := why.Why(q)
					if err != nil || len(a.Causes) != 1 || len(a.Causes[0].Set) == 0 {
						b.Fatalf("%v: %+v", err, a)
					}
					b.ReportMetric(float64(a.Tried), "worlds")
				}
			})
		}
		b.Run(fmt.Sprintf("%d/call", n), func(b *testing.B) {
			for b.Loop() {
				a, err := why.WhyNot(why.CallQuestion{World: w, Proxy: p, Call: simulate.Call{Method: "GET", Host: "shop.example", Path: "/v3/x", Port: 80}})
				if err != nil || a.End != why.NoEndpoint {
					b.Fatalf("%v: %+v", err, a)
				}
				b.ReportMetric(float64(a.Tried), "worlds")
			}
		})
	}
}
