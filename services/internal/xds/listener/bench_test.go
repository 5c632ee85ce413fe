package listener_test

import (
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/model/modeltest"
	"meshlog.dev/services/internal/xds/listener"
)

// 1001 services, of which every second speaks HTTP and the others have
// listeners of their own.
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
	pc := modeltest.PushContext(b, modeltest.YAML(b, strings.Join(docs, "---\n"))...)
	class := model.Classify(pc, &model.Proxy{Type: model.Sidecar, Namespace: "n1"}).LDS
	b.ReportAllocs()
	for b.Loop() {
		if n := len(listener.Listeners(pc.Read(), class)); n < 1000 {
			b.Fatalf("%d parts", n)
		}
	}
}
