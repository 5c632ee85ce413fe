package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// warming bounds how long Envoy waits for endpoints that no frontend sends (E2).
const warming = 15 * time.Second

// A changed cluster is warm at once: its endpoints are sent with it, although
// they have not changed (E2, E3).
func TestClusterChanges(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			versions := f.read(shop.Versions)
			f.during("a cluster changes", func() {
				for seconds := 1; seconds <= 3; seconds++ {
					f.save(shop.Versions, versions+fmt.Sprintf("  trafficPolicy: {connectionPool: {tcp: {connectTimeout: %ds}}}\n", seconds))
					f.within(warming/3, "a changed cluster", func() { f.acked(rig.Cluster) })
					f.share(shop.V2, 10)
				}
			})
			f.nothingRejected()
		})
	}
}

// within demands that an action takes at most a given time.
func (f *fixture) within(most time.Duration, what string, happens func()) {
	f.Helper()
	begin := time.Now()
	happens()
	if took := time.Since(begin); took > most {
		f.Errorf("%s took %s, want at most %s", what, took, most)
	}
}

// The frontend that Envoy is connected to dies, again and again. Envoy connects
// to the other one at once, because every one of its streams gets an answer (E9,
// E24, E29).
func TestFrontendsDieInTurn(t *testing.T) {
	const (
		times = 6
		// After so many silent streams, Envoy's last backoff would exceed 10 s.
		most = 5 * time.Second
	)
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			f.during("frontends die in turn", func() {
				for range times {
					it := f.back(node)
					it.Kill()
					f.within(most, "coming back", func() { f.back(node) })
					f.must(it.Restart())
					f.must(it.Ready(f.ctx))
				}
				f.shift(0, 100)
				f.share(shop.V2, 100)
			})
			f.nothingRejected()
		})
	}
}

// While all frontends are down, one service goes and another comes, with the
// routes to them. Envoy moves from the old to the new service without a failed
// request (E7).
func TestResumeOnNewer(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			old, next := f.backend("blue"), f.backend("green")
			f.save(shop.Routes, moved+"---"+fmt.Sprintf(blue, old.Port))
			f.goes(f.shop.URL(), old.Name)
			f.during("all frontends are down and the configuration changes", func() {
				for _, s := range f.mesh.Frontends {
					f.must(s.Stop())
				}
				f.must(f.envoy.Connected(f.ctx, false))
				green := strings.NewReplacer("blue", "green")
				before := f.head()
				f.save(shop.Routes, green.Replace(moved+"---"+fmt.Sprintf(blue, next.Port)))
				f.must(program.Until(f.ctx, "a newer version", func(context.Context) error {
					if now := f.head(); !now.After(before) {
						return fmt.Errorf("the head is %s", now)
					}
					return nil
				}))
				for _, s := range f.mesh.Frontends {
					f.must(s.Restart())
				}
				f.goes(f.shop.URL(), next.Name)
				f.share(next.Name, 100)
			})
			f.nothingRejected()
		})
	}
}

// head returns the version that the builder published last.
func (f *fixture) head() rig.Version {
	f.Helper()
	var r rig.BuilderReport
	f.must(f.mesh.Builders[0].Debug(f.ctx, "builder", &r))
	return r.Head
}

// A cluster whose name no DNS server resolves stays cold for longer than a user
// would wait. All other changes take effect, and so does a route that names the
// cluster. The same holds after Envoy moves to another frontend, which it then
// does not ask for clusters (E4, E9, E16).
func TestNameIsNotResolved(t *testing.T) {
	const most = 10 * time.Second // includes the 5 s that the frontend waits
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	overlay := fmt.Sprintf(silentDNS, node, silent.LocalAddr().(*net.UDPAddr).Port)
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Overlay: overlay, Delta: delta})
			f.during("a name is not resolved", func() {
				f.save(shop.Routes, f.weighted(0, 100)+"---"+nowhere)
				f.within(most, "a change saved with it", func() { f.goes(f.shop.URL(), shop.V2) })
				f.warms()
				f.within(most, "a later change", func() { changes(f, "---"+nowhere) })
				f.save(shop.Routes, strings.Replace(f.weighted(0, 100), "  http:\n", toNowhere, 1)+"---"+nowhere)
				f.within(most, "a route that names it", func() { f.goes(f.shop.URL(), shop.V2) })
				f.within(most, "a change after that", func() { changes(f, "---"+nowhere) })
				// Envoy asks the other frontend for all types except clusters.
				it := f.back(node)
				it.Kill()
				f.within(most, "a change through another frontend", func() { changes(f, "---"+nowhere) })
				f.must(it.Restart())
			})
			f.nothingRejected()
		})
	}
}

// warms waits until the status shows that Envoy is warming clusters and does not
// answer.
func (f *fixture) warms() {
	f.Helper()
	f.must(program.Until(f.ctx, "CDS without an answer", func(ctx context.Context) error {
		var proxies []rig.ProxyStatus
		if err := f.mesh.CLI(ctx, &proxies, "proxy-status", node); err != nil {
			return err
		}
		for _, p := range proxies {
			if slices.ContainsFunc(p.Types, func(t rig.TypeStatus) bool { return t.Type == "CDS" && t.Unanswered != nil }) {
				return nil
			}
		}
		return fmt.Errorf("proxies: %+v", proxies)
	}))
}

// silentDNS makes Envoy ask a DNS server that never answers; merged over a
// bootstrap.
const silentDNS = `
node: {id: %s, cluster: demo}
typed_dns_resolver_config:
  name: envoy.network.dns_resolver.cares
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
    resolvers: [{socket_address: {address: 127.0.0.1, port_value: %d}}]
    dns_resolver_options: {no_default_search_domain: true}
`

const nowhere = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: nowhere, namespace: demo}
spec:
  hosts: [nowhere.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
`

const toNowhere = `  http:
    - match: [{uri: {prefix: /nowhere}}]
      route: [{destination: {host: nowhere.example.com}}]
`

// One Envoy has a stream for each type, with one variant of the protocol. It runs
// beside an Envoy that has one stream for all types, with the other variant. Both
// follow a canary (E33).
func TestStreamsPerType(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: !delta})
			port := f.freePort()
			source := fmt.Sprintf(ownStream, map[bool]string{false: "GRPC", true: "DELTA_GRPC"}[delta])
			save := func(v1, v2 int) {
				f.Helper()
				f.save("own.yaml", fmt.Sprintf(ownResources, source, f.v1.Port, f.v2.Port, port, v1, v2))
			}
			save(100, 0)
			own, err := f.mesh.Join(f.ctx, rig.EnvoyConfig{Node: "own", Delta: delta, Overlay: fmt.Sprintf(ownTypes, source)}, port)
			f.must(err)
			f.Cleanup(own.Kill)
			url := fmt.Sprintf("http://127.0.0.1:%d/", port)
			f.goes(url, shop.V1)
			load, err := rig.StartLoad(f.ctx, url, 4)
			f.must(err)
			defer load.Stop()
			f.during("two Envoys follow a canary", func() {
				for _, v2 := range []int{50, 100} {
					save(100-v2, v2)
					f.weigh(100-v2, v2)
					f.shares(url, shop.V2, float64(v2))
					f.shares(f.shop.URL(), shop.V2, float64(v2))
				}
			})
			f.must(load.Stop().Err())
			if n, err := own.Rejected(f.ctx); err != nil || n != 0 {
				f.Errorf("%s rejected %d responses, %v", own.Name, n, err)
			}
			f.nothingRejected()
		})
	}
}

// shares waits until a backend gets its share of the requests, and demands that
// the share is right.
func (f *fixture) shares(url, backend string, want float64) {
	f.Helper()
	f.must(program.Until(f.ctx, fmt.Sprintf("%s to get %.0f %% of the requests", backend, want), func(ctx context.Context) error {
		t := rig.Send(ctx, url, 50)
		if got := t.Share(backend); got != want && (want == 0 || want == 100 || got < want-30 || got > want+30) {
			return fmt.Errorf("%+v", t)
		}
		return nil
	}))
	f.checkShare(rig.Send(f.ctx, url, 2000), backend, want)
}

// ownStream is the config source of one type.
const ownStream = `{resource_api_version: V3, initial_fetch_timeout: 0s, api_config_source: {api_type: %s, transport_api_version: V3, set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: meshlog}}]}}`

// ownTypes is merged over a bootstrap.
const ownTypes = `
node: {id: own, cluster: own, metadata: {LABELS: {app: own}}}
dynamic_resources:
  cds_config: &source %s
  lds_config: *source
`

// ownResources gives each type a stream of its own.
const ownResources = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own-v1, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: own-v1
    type: EDS
    eds_cluster_config: {eds_config: %[1]s}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own-v2, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: own-v2
    type: EDS
    eds_cluster_config: {eds_config: %[1]s}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own-v1-endpoints, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: own-v1
    endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}}]}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own-v2-endpoints, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: own-v2
    endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]d}}}}]}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: own
    address: {socket_address: {address: 127.0.0.1, port_value: %[4]d}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: own
              rds: {route_config_name: own, config_source: %[1]s}
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: own-routes, namespace: istio-system}
spec:
  nodes: {cluster: own}
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: own
    virtual_hosts:
      - name: own
        domains: ["*"]
        routes:
          - match: {prefix: /}
            route:
              weighted_clusters:
                clusters: [{name: own-v1, weight: %[5]d}, {name: own-v2, weight: %[6]d}]
`
