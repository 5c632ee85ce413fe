package world

import (
	"fmt"
	"strings"
)

// entry returns a service with its endpoints, half of version v1 and half of v2.
func (w *World) entry(s service, first string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s]
  addresses: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  endpoints:
`, s.name(), w.namespaceOf(s), w.host(s), s.vip())
	for i := range w.size.Endpoints {
		address := s.endpoint(i)
		if i == 0 {
			address = first
		}
		fmt.Fprintf(&b, "  - {address: %s, labels: {app: %s, version: v%d}}\n", address, s.name(), 1+i%2)
	}
	return b.String()
}

// routes returns a VirtualService that splits the requests for a service by
// weight.
func (w *World) routes(s service, v1 int) string {
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
`, s.name(), w.namespaceOf(s), w.host(s), v1, 100-v1)
}

// subsets returns a DestinationRule with the versions of a service and its
// connection settings.
func (w *World) subsets(s service) string {
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
`, s.name(), w.namespaceOf(s), w.host(s))
}

// private returns a DestinationRule that only clients of a namespace see, for a
// service that has no other rule.
func (w *World) private(namespace int) string {
	s := service(w.size.Rules + namespace%max(1, w.size.Services-w.size.Rules))
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: private, namespace: %s}
spec:
  host: %s
  exportTo: ["."]
  trafficPolicy:
    connectionPool: {tcp: {connectTimeout: %dms}}
`, w.Namespace(namespace), w.host(s), 1000+namespace)
}

// policy returns an AuthorizationPolicy for all proxies.
func policy(i int) string {
	return fmt.Sprintf(`---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: policy-%[1]d, namespace: istio-system}
spec:
  selector: {matchLabels: {app: load}}
  action: DENY
  rules:
  - from: [{source: {notPrincipals: ["cluster.local/ns/team-%[1]d/sa/app"]}}]
    to: [{operation: {methods: [POST], paths: ["/team-%[1]d/*"]}}]
`, i)
}

// audit returns the AuthorizationPolicy that changes. Nobody is refused by it.
func audit(change int) string {
	return fmt.Sprintf(`---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: changing, namespace: istio-system}
spec:
  selector: {matchLabels: {app: load}}
  action: AUDIT
  rules:
  - to: [{operation: {paths: ["/audited-%d/*"]}}]
`, change)
}
