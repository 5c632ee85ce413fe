package kind_test

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkValidate measures the decoding and validation of an object.
func BenchmarkValidate(b *testing.B) {
	for _, endpoints := range []int{3, 1000} {
		benchmark(b, fmt.Sprintf("Resource/endpoints=%d", endpoints), "Resource",
			`{"resource": {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "x", "endpoints": [{"lb_endpoints": [`+
				repeat(endpoints, `{"endpoint": {"address": {"socket_address": {"address": "10.0.%d.%d", "port_value": 80}}}}`)+`]}]}}`)
		benchmark(b, fmt.Sprintf("ServiceEntry/endpoints=%d", endpoints), "ServiceEntry",
			`{"hosts": ["a.example.com"], "resolution": "STATIC", "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "endpoints": [`+
				repeat(endpoints, `{"address": "10.0.%d.%d", "labels": {"version": "v1"}}`)+`]}`)
		benchmark(b, fmt.Sprintf("EndpointSlice/endpoints=%d", endpoints), "EndpointSlice",
			`{"service": "a", "ports": [{"number": 80}], "endpoints": [`+repeat(endpoints, `{"addresses": ["10.0.%d.%d"]}`)+`]}`)
	}
	for _, routes := range []int{1, 100} {
		benchmark(b, fmt.Sprintf("VirtualService/routes=%d", routes), "VirtualService",
			`{"hosts": ["a.example.com"], "http": [`+repeat(routes, `{"match": [{"uri": {"prefix": "/a%d/b%d"}, "headers": {"x-a": {"regex": "a.*"}}}],
				"timeout": "1s", "retries": {"attempts": 2, "retryOn": "5xx"},
				"route": [{"destination": {"host": "a", "subset": "v1"}, "weight": 90}, {"destination": {"host": "a", "subset": "v2"}, "weight": 10}]}`)+`]}`)
	}
}

// repeat returns a list of n elements with two numbers each.
func repeat(n int, format string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(format, i/256, i%256))
	}
	return strings.Join(list, ",")
}

func benchmark(b *testing.B, name, of, spec string) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		k := mustKind(b, of)
		m, err := k.DecodeJSON([]byte(spec))
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
			if ps := k.Validate("", m); len(ps) > 0 {
				b.Fatal(ps)
			}
		}
	})
}
