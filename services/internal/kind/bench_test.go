package kind_test

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkValidate is what the fold pays for a ClusterLoadAssignment.
func BenchmarkValidate(b *testing.B) {
	for _, endpoints := range []int{3, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			var eps []string
			for i := range endpoints {
				eps = append(eps, fmt.Sprintf(`{"endpoint": {"address": {"socket_address": {"address": "10.0.%d.%d", "port_value": 80}}}}`, i/256, i%256))
			}
			k := mustKind(b, "Resource")
			m, err := k.DecodeJSON([]byte(`{"resource": {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
				"cluster_name": "x", "endpoints": [{"lb_endpoints": [` + strings.Join(eps, ",") + `]}]}}`))
			if err != nil {
				b.Fatal(err)
			}
			payload, err := k.Encode(m)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				m, err := k.Decode(k.TypeURL, payload)
				if err != nil {
					b.Fatal(err)
				}
				if ps := k.Validate(m); len(ps) > 0 {
					b.Fatal(ps)
				}
			}
		})
	}
}
