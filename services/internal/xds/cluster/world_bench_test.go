package cluster_test

import (
	"fmt"
	"testing"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/model/modeltest"
	"meshlog.dev/services/internal/xds"
)

// A thousand services of ten endpoints, from nothing.
func BenchmarkGenerate(b *testing.B) {
	var changes []modeltest.Change
	for i := range 1001 {
		name := fmt.Sprintf("service-%d", i)
		ips := make([]string, 10)
		for j := range ips {
			ips[j] = fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j)
		}
		changes = append(changes, modeltest.Service("default", name, "80 http"), modeltest.Slice("default", name, "80 http", ips...))
	}
	pc := modeltest.PushContext(b, changes...)
	for _, client := range []model.Proxy{{Type: model.Sidecar}, {GRPC: true}} {
		class := model.Classify(pc, &client)
		for _, rt := range []model.ResourceType{model.CDS, model.EDS} {
			b.Run(fmt.Sprintf("%s gRPC=%t", rt, client.GRPC), func(b *testing.B) {
				b.ReportAllocs()
				var bytes int
				for b.Loop() {
					bytes = 0
					for _, r := range xds.Generate(pc, class, rt).Set.Resources {
						bytes += r.Size()
					}
				}
				b.ReportMetric(float64(bytes), "wire-bytes")
			})
		}
	}
}
