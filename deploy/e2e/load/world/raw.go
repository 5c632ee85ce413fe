package world

import (
	"fmt"
	"strings"
)

func (w *World) writeRaw() error {
	var clusters, endpoints strings.Builder
	last, _ := w.changing()
	for i := range w.size.Services {
		s := service(i)
		clusters.WriteString(w.rawCluster(s))
		if s != last {
			endpoints.WriteString(w.rawEndpoints(s, s.endpoint(0)))
		}
	}
	for name, text := range map[string]string{
		"clusters.yaml": clusters.String(), "endpoints.yaml": endpoints.String(), endpointsFile: w.rawEndpoints(last, last.endpoint(0)),
		routesFile: w.rawRoutes(90), "listener.yaml": rawListener,
	} {
		if _, err := w.Save(name, text); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) rawCluster(s service) string {
	return fmt.Sprintf(`---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: outbound|80|v1|%[3]s
    type: EDS
    connect_timeout: 10s
    eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}
    circuit_breakers: {thresholds: [{max_connections: 4294967295, max_pending_requests: 4294967295, max_requests: 4294967295, max_retries: 4294967295, track_remaining: true}]}
    common_lb_config: {healthy_panic_threshold: {}}
    metadata: {filter_metadata: {istio: {config: "%[4]s", default_original_port: 80, services: [{host: %[3]s, name: %[1]s, namespace: %[2]s}]}}}
`, s.name(), w.namespaceOf(s), w.host(s), strings.Repeat("x", 600))
}

func (w *World) rawEndpoints(s service, first string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: %[1]s-endpoints, namespace: %[2]s}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: outbound|80|v1|%[3]s
    endpoints:
    - lb_endpoints:
`, s.name(), w.namespaceOf(s), w.host(s))
	for i := range w.size.Endpoints {
		address := s.endpoint(i)
		if i == 0 {
			address = first
		}
		fmt.Fprintf(&b, "      - {endpoint: {address: {socket_address: {address: %s, port_value: 8080}}}, load_balancing_weight: 1, metadata: {filter_metadata: {istio: {workload: '%s;%s;v1;;Kubernetes;aaaaaaaaaaaaaaaaaaaaaaaaa'}}}}\n", address, s.name(), w.namespaceOf(s))
	}
	return b.String()
}

func (w *World) rawRoutes(v1 int) string {
	var b strings.Builder
	b.WriteString(`---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: routes, namespace: ns-0}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: "80"
    virtual_hosts:
`)
	for i := range w.size.Services {
		s := service(i)
		weight := 90
		if i == 0 {
			weight = v1
		}
		fmt.Fprintf(&b, `    - {name: "%[1]s:80", domains: ["%[1]s", "%[2]s"], routes: [{match: {prefix: /}, decorator: {operation: "%[1]s:80/*"}, route: {timeout: 0s, weighted_clusters: {clusters: [{name: "outbound|80|v1|%[1]s", weight: %[3]d}, {name: "outbound|80|v1|%[1]s", weight: %[4]d}]}}}]}
`, w.host(s), s.vip(), weight, 100-weight)
	}
	return b.String()
}

const rawListener = `apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: listener, namespace: ns-0}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: http
    address: {socket_address: {address: 127.0.0.1, port_value: 10000}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: http
              rds: {route_config_name: "80", config_source: {ads: {}, resource_api_version: V3}}
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`
