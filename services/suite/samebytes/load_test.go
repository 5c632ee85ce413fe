package samebytes

import (
	"fmt"
	"strings"
	"testing"
)

// The size of the world of the load run: services, endpoints of each, and
// namespaces. The first loadRules services have a VirtualService and a
// DestinationRule, and each namespace has a DestinationRule of its own.
const (
	loadServices   = 1001
	loadEndpoints  = 10
	loadRules      = 100
	loadNamespaces = 100
)

// TestLoad is TestSameBytes for the world of the load run, whose log is
// generated: its archive would be too large for the tree.
func TestLoad(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	files := map[string]string{}
	for i := range loadServices {
		s := loadService(i)
		name := s.namespace() + ".yaml"
		if i == loadServices-1 {
			name = "changing-endpoints.yaml"
		}
		files[name] += s.entry(s.endpoint(0))
		if i >= loadRules {
			continue
		}
		name = s.namespace() + ".yaml"
		files[name] += s.subsets()
		if i == 0 {
			name = "changing-routes.yaml"
		}
		files[name] += s.routes(90)
	}
	for i := range loadNamespaces {
		files[fmt.Sprintf("ns-%d.yaml", i)] += private(i)
	}
	at := map[string]string{}
	for name, text := range files {
		at["000/file/default/"+name] = text
	}
	r.saveAll(at)
	last, first := loadService(loadServices-1), loadService(0)
	for i := range 3 {
		r.save(fmt.Sprintf("%03d/file/default/changing-endpoints.yaml", 2*i+1), last.entry(fmt.Sprintf("10.250.0.%d", i+1)))
		r.save(fmt.Sprintf("%03d/file/default/changing-routes.yaml", 2*i+2), first.routes(89-i))
	}
	compare(t, sample{name: "load", past: r.past(), summary: true})
}

type loadService int

func (s loadService) name() string      { return fmt.Sprintf("svc-%d", int(s)) }
func (s loadService) namespace() string { return fmt.Sprintf("ns-%d", int(s)%loadNamespaces) }
func (s loadService) host() string      { return s.name() + "." + s.namespace() + ".svc.cluster.local" }

func (s loadService) endpoint(i int) string {
	return fmt.Sprintf("10.%d.%d.%d", 128+i, int(s)/250, int(s)%250+1)
}

// entry returns the ServiceEntry with its endpoints, half of version v1 and half of
// v2. first is the address of the first endpoint.
func (s loadService) entry(first string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s]
  addresses: [10.96.%d.%d]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  endpoints:
`, s.name(), s.namespace(), s.host(), int(s)/250, int(s)%250+1)
	for i := range loadEndpoints {
		address := s.endpoint(i)
		if i == 0 {
			address = first
		}
		fmt.Fprintf(&b, "  - {address: %s, labels: {app: %s, version: v%d}}\n", address, s.name(), 1+i%2)
	}
	return b.String()
}

// routes returns a VirtualService that splits the requests by weight.
func (s loadService) routes(v1 int) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  hosts: [%[3]s]
  http:
  - match: [{headers: {x-canary: {exact: "yes"}}}]
    route: [{destination: {host: %[3]s, subset: v2}}]
  - timeout: 5s
    retries: {attempts: 2, perTryTimeout: 2s, retryOn: "5xx,connect-failure"}
    route:
    - {destination: {host: %[3]s, subset: v1}, weight: %[4]d}
    - {destination: {host: %[3]s, subset: v2}, weight: %[5]d}
`, s.name(), s.namespace(), s.host(), v1, 100-v1)
}

func (s loadService) subsets() string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: %s}
spec:
  host: %s
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 100, connectTimeout: 2s}, http: {http1MaxPendingRequests: 100}}
    loadBalancer: {simple: LEAST_REQUEST}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s, baseEjectionTime: 30s}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`, s.name(), s.namespace(), s.host())
}

// private returns a DestinationRule that only clients of a namespace see, for a
// service that has no other rule.
func private(namespace int) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: private, namespace: ns-%d}
spec:
  host: %s
  exportTo: ["."]
  trafficPolicy:
    connectionPool: {tcp: {connectTimeout: %dms}}
`, namespace, loadService(loadRules+namespace).host(), 1000+namespace)
}
