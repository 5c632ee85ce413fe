package listener_test

import (
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/listener"
)

// BenchmarkParts lists the parts of the listeners of 1001 services: every second
// service speaks HTTP, the others have listeners of their own.
func BenchmarkParts(b *testing.B) {
	var docs []string
	for i := range 1001 {
		docs = append(docs, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: %s, port: 80}]
`, i, i%100, i/256, i%256, [...]string{"http", "tcp"}[i%2]))
	}
	pc := meshtest.PushContext(b, meshtest.YAML(b, strings.Join(docs, "---\n"))...)
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "n1"}).LDS
	b.ReportAllocs()
	for b.Loop() {
		if n := len(listener.Listeners(pc.Read(), class)); n < 1000 {
			b.Fatalf("%d parts", n)
		}
	}
}
