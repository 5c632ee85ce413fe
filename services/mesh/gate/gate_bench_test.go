package gate_test

import (
	"fmt"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
)

// BenchmarkGate measures what the gate adds to a version of a mesh of 1001 services
// in 100 namespaces, each with a rule of its own.
func BenchmarkGate(b *testing.B) {
	host := func(i int) string { return fmt.Sprintf("s%d.ns-%d.svc.cluster.local", i, i%100) }
	slice := func(i, version int) meshtest.Change {
		ips := []string{fmt.Sprintf("10.9.%d.%d", version/250%250, version%250+1)}
		for n := range 9 {
			ips = append(ips, fmt.Sprintf("10.%d.%d.%d", 100+n, i/250, i%250+1))
		}
		return meshtest.Slice(fmt.Sprintf("ns-%d", i%100), fmt.Sprint("s", i), "80 http", ips...)
	}
	var all []meshtest.Change
	for i := range 1001 {
		all = append(all, meshtest.Service(fmt.Sprintf("ns-%d", i%100), fmt.Sprint("s", i), "80 http"), slice(i, 0))
		if i < 100 {
			r := &networking.DestinationRule{Host: host(i), ExportTo: []string{"."}, Subsets: []*networking.Subset{{Name: "v1"}}}
			all = append(all, meshtest.Object("DestinationRule", fmt.Sprintf("ns-%d", i), "private", r))
		}
	}
	first, keys, err := world.NewWorld().Apply(meshtest.Rows(all...))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if _, err := gate.New().Build(first, keys); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("endpoint", func(b *testing.B) {
		gate, w, i := gate.New(), first, 0
		if _, err := gate.Build(w, keys); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			i++
			next, keys, err := w.Apply(meshtest.Rows(slice(1000, i)))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := gate.Build(next, keys); err != nil {
				b.Fatal(err)
			}
			w = next
		}
	})
}
