package cluster

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
)

// service10 returns a service with three ports and ten endpoints.
func service10() *maker {
	m := &maker{mesh: &meshconfig.MeshConfig{}, endpoints: index.Endpoints{}, service: &index.Service{
		ServiceID: index.ServiceID{Namespace: "shop", Hostname: "reviews.shop.svc.cluster.local"},
	}}
	for port := uint32(80); port < 83; port++ {
		m.service.Ports = append(m.service.Ports, index.Port{Number: port, Protocol: index.HTTP})
		for i := range 10 {
			m.endpoints[port] = append(m.endpoints[port], index.Endpoint{
				Address: fmt.Sprintf("10.0.0.%d", i), Port: 8080, Weight: 1,
				Labels:   map[string]string{"app": "reviews", "version": fmt.Sprintf("v%d", i%2)},
				Locality: proxy.Locality{Region: "eu", Zone: string(rune('a' + i%3))},
				Workload: fmt.Sprintf("reviews-6d4cf56db6-x7k2%d", i), WorkloadNamespace: "shop", ClusterID: "Kubernetes",
			})
		}
	}
	return m
}

// BenchmarkEndpoints makes and encodes the assignments of a service, the part that
// a changed endpoint makes again.
func BenchmarkEndpoints(b *testing.B) {
	rule := &networking.DestinationRule{Subsets: []*networking.Subset{
		{Name: "v0", Labels: map[string]string{"version": "v0"}}, {Name: "v1", Labels: map[string]string{"version": "v1"}},
	}}
	for name, r := range map[string]*networking.DestinationRule{"plain": nil, "two subsets": rule} {
		b.Run(name, func(b *testing.B) {
			m := service10()
			m.rule = r
			benchmark(b, m.assignments)
		})
	}
}

func BenchmarkClusters(b *testing.B) { benchmark(b, service10().clusters) }

func benchmark(b *testing.B, pieces func() []piece.Piece) {
	b.ReportAllocs()
	var bytes, messages int
	for b.Loop() {
		bytes, messages = 0, 0
		for _, p := range pieces() {
			value, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.Message)
			if err != nil {
				b.Fatal(err)
			}
			bytes += len(value)
			messages++
		}
	}
	b.ReportMetric(float64(bytes), "wire-bytes")
	b.ReportMetric(float64(messages), "messages")
}
