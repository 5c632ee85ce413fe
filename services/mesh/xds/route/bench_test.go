package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// thousand returns a mesh of 1001 services in 100 namespaces, about 100 of them
// with a VirtualService.
func thousand(b testing.TB) *index.PushContext {
	var docs []string
	for i := range 1001 {
		docs = append(docs, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: n%d}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: http, port: 80}]
`, i, i%100, i/256, i%256))
	}
	for i := range 100 {
		docs = append(docs, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s%[1]d, namespace: n%[1]d}
spec:
  hosts: [s%[1]d]
  http:
  - match: [{headers: {x-user: {exact: tester}}}]
    route: [{destination: {host: s%[1]d, subset: v2}}]
  - route:
    - {destination: {host: s%[1]d, subset: v1}, weight: 90}
    - {destination: {host: s%[1]d, subset: v2}, weight: 10}
`, i), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: s%[1]d, namespace: n%[1]d}
spec:
  host: s%[1]d
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`, i))
	}
	return meshtest.PushContext(b, meshtest.YAML(b, strings.Join(docs, "---\n"))...)
}

func class(pc *index.PushContext, namespace string) index.RDSClass {
	return index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace}).RDS
}

// Classes of several namespaces share all virtual hosts except those of their own
// services, so that a change makes one part again for all of them.
func TestClassesShareParts(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, `apiVersion: v1
kind: Service
metadata: {name: a, namespace: n1}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: n2}
spec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: n3}
spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: n1}
spec:
  hosts: [private.internal]
  exportTo: ["."]
  ports: [{number: 81, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: n3}
spec:
  hosts: [a]
  http:
  - match: [{sourceLabels: {app: web}}]
    route: [{destination: {host: a}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: private, namespace: n1}
spec:
  hosts: [private.internal]
  exportTo: ["."]
  http:
  - match: [{sourceLabels: {app: cart}}]
    route: [{destination: {host: private.internal}}]
`)...)
	has := map[piece.Part]bool{}
	for _, p := range route.Routes(pc.Read(), class(pc, "n1")) {
		has[p] = true
	}
	var only []string
	for _, p := range route.Routes(pc.Read(), class(pc, "n2")) {
		if !has[p] {
			pieces, _ := p.Make(pc.Read())
			only = append(only, pieces[0].Message.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetName())
		}
	}
	if want := []string{"a.n1.svc.cluster.local:80", "a.n2.svc.cluster.local:80"}; !slices.Equal(only, want) {
		t.Errorf("not shared: got %v, want %v", only, want)
	}
}

func BenchmarkParts(b *testing.B) {
	pc := thousand(b)
	c := class(pc, "n1")
	b.ReportAllocs()
	for b.Loop() {
		if n := len(route.Routes(pc.Read(), c)); n != 1003 {
			b.Fatalf("%d parts", n)
		}
	}
}

func BenchmarkMake(b *testing.B) {
	pc := thousand(b)
	parts := route.Routes(pc.Read(), class(pc, "n1"))
	for name, i := range map[string]int{"service": len(parts) - 2, "virtual service": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if pieces, ds := parts[i].Make(pc.Read()); len(pieces) != 1 || len(ds) != 0 {
					b.Fatalf("%v: %v", parts[i], ds)
				}
			}
		})
	}
}
