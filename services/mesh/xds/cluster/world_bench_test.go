package cluster_test

import (
	"fmt"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// BenchmarkGenerate generates a thousand services with ten endpoints from nothing.
func BenchmarkGenerate(b *testing.B) {
	var changes []meshtest.Change
	for i := range 1001 {
		name := fmt.Sprintf("service-%d", i)
		ips := make([]string, 10)
		for j := range ips {
			ips[j] = fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j)
		}
		changes = append(changes, meshtest.Service("default", name, "80 http"), meshtest.Slice("default", name, "80 http", ips...))
	}
	pc := meshtest.PushContext(b, changes...)
	for _, client := range []proxy.Proxy{{Type: proxy.Sidecar}, {GRPC: true}} {
		class := index.Classify(pc, &client)
		for _, rt := range []ident.ResourceType{ident.CDS, ident.EDS} {
			b.Run(fmt.Sprintf("%s gRPC=%t", rt, client.GRPC), func(b *testing.B) {
				b.ReportAllocs()
				var bytes int
				for b.Loop() {
					bytes = 0
					for _, r := range xds.NewCatalog(pc).Set(class, rt).Resources {
						bytes += r.Size()
					}
				}
				b.ReportMetric(float64(bytes), "wire-bytes")
			})
		}
	}
}
