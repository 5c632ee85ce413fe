package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// refusal is a resource that Envoy rejects for a reason that only Envoy can know.
type refusal struct {
	kind    string // as proxy-status names it
	name    string
	message string // part of Envoy's message
}

var refusals = []refusal{
	{"CDS", "inlined", "maximum UNIX domain socket path"},
	{"EDS", "piped", "maximum UNIX domain socket path"},
	{"LDS", "taken", "ddress already in use"},
	{"RDS", "extra", "unknown cluster"},
}

// extras are a listener with routes of its own, and one resource of each type
// that Envoy accepts in its first form and rejects in its second.
func extras(port, taken int, bad bool) string {
	path, cluster := "/tmp/short", "inlined"
	if bad {
		path, cluster = "/tmp/"+strings.Repeat("long", 40), "absent"
	}
	return fmt.Sprintf(rawExtras, port, taken, path, cluster)
}

const rawExtras = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: inlined, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: inlined
    type: STATIC
    load_assignment:
      cluster_name: inlined
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[3]s}}}}]}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: piped, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: piped
    type: EDS
    eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: piped-endpoints, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: piped
    endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[3]s}}}}]}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: taken, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: taken
    address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.echo
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: extra, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: extra
    address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: extra
              rds: {route_config_name: extra, config_source: {ads: {}, resource_api_version: V3}}
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: extra-routes, namespace: istio-system}
spec:
  nodes: {cluster: demo}
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: extra
    validate_clusters: true
    virtual_hosts:
      - name: extra
        domains: ["*"]
        routes:
          - match: {prefix: /other}
            route: {cluster: %[4]s}
          - match: {prefix: /}
            direct_response: {status: 200, body: {inline_string: extra}}
`

// A resource that Envoy rejects is held back, for each type, while all other
// changes take effect: changes in the same save, later changes, and changes to an
// Envoy that starts. With no other Envoy to compare with, the resource soon is in
// quarantine, unless the reason is a port that is in use.
//
// The status shows it with Envoy's message, the last good form stays, and the
// repaired resource is served (E11 to E15, E26).
func TestRejected(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			c := rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta}
			f := startWith(t, apart(1, 2), c)
			extra, free := f.freePort(), f.freePort()
			url := fmt.Sprintf("http://127.0.0.1:%d/", extra)
			bad := "---" + extras(extra, f.v1.Port, true)
			good := "---" + extras(extra, free, false)

			f.during("Envoy rejects new resources", func() {
				f.save(shop.Routes, f.weighted(0, 100)+bad)
				f.goes(f.shop.URL(), shop.V2)
				f.heldBack(refusals...)
				changes(f, bad)
				f.save(shop.Routes, f.weighted(0, 100)+good)
				f.heldBack()
				f.goes(url, "extra")
			})
			f.during("Envoy rejects changed resources", func() {
				f.save(shop.Routes, f.weighted(0, 100)+bad)
				f.heldBack(refusals...)
				f.goes(url, "extra")
				changes(f, bad)
			})
			f.quarantined("CDS inlined, last good", "EDS piped, last good", "RDS extra, last good")
			f.envoy.Kill()
			var err error
			f.envoy, err = f.mesh.Join(f.ctx, c, f.shop.Port)
			f.must(err)
			f.Cleanup(f.envoy.Kill)
			// With delta, Envoy drops the good routes of a response that it
			// rejects, and listens without routes until they are sent again (E13).
			f.goes(f.shop.URL(), shop.V1)
			f.share(shop.V1, 100)
			f.during("a new Envoy rejects them", func() {
				f.heldBack(refusals...)
				changes(f, bad)
				f.save(shop.Routes, f.weighted(100, 0)+good)
				f.heldBack()
				f.goes(url, "extra")
			})
		})
	}
}

// changes makes all kinds of changes beside the rest of the file, which is held
// back: endpoints, routes, and a service with its route.
func changes(f *fixture, rest string) {
	f.Helper()
	other := f.backend("other")
	_, err := f.shop.Endpoints([]int{other.Port}, []int{f.v2.Port})
	f.must(err)
	f.save(shop.Routes, f.weighted(100, 0)+rest)
	f.goes(f.shop.URL(), other.Name)
	f.save(shop.Routes, moved+"---"+fmt.Sprintf(blue, f.v2.Port)+rest)
	f.goes(f.shop.URL(), shop.V2)
	_, err = f.shop.Endpoints([]int{f.v1.Port}, []int{f.v2.Port})
	f.must(err)
	f.save(shop.Routes, f.weighted(100, 0)+rest)
	f.goes(f.shop.URL(), shop.V1)
}

// weighted returns the file of the routes with new weights.
func (f *fixture) weighted(v1, v2 int) string {
	f.Helper()
	text, err := f.shop.Weighted(v1, v2)
	f.must(err)
	return text
}

func (f *fixture) freePort() int {
	f.Helper()
	port, err := testport.TCP()
	f.must(err)
	return port
}

// goes waits until one backend alone answers the requests.
func (f *fixture) goes(url, backend string) {
	f.Helper()
	f.must(program.Until(f.ctx, backend+" to answer", func(ctx context.Context) error {
		if t := rig.Send(ctx, url, 20); t.Share(backend) != 100 {
			return fmt.Errorf("%+v", t)
		}
		return nil
	}))
}

// heldBack waits until the status shows that exactly the wanted resources are
// held back from Envoy, or in quarantine.
func (f *fixture) heldBack(want ...refusal) {
	f.Helper()
	f.must(program.Until(f.ctx, fmt.Sprintf("%d resources to be held back", len(want)), func(ctx context.Context) error {
		var proxies []rig.ProxyStatus
		if err := f.mesh.CLI(ctx, &proxies, "proxy-status", node); err != nil {
			return err
		}
		if len(proxies) != 1 {
			return fmt.Errorf("%+v", proxies)
		}
		for _, t := range proxies[0].Types {
			i := slices.IndexFunc(want, func(r refusal) bool { return r.kind == t.Type })
			switch {
			case i < 0 && (t.Nack != nil || len(t.HeldBack) > 0 || len(t.Quarantined) > 0 || t.Status != "SYNCED"):
				return fmt.Errorf("%+v, %+v", t, t.Nack)
			case i < 0:
			case slices.Equal(t.Quarantined, []string{want[i].name}) && t.Nack == nil && t.Type != "LDS":
			case !slices.Equal(t.HeldBack, []string{want[i].name}), t.Nack == nil,
				!strings.Contains(t.Nack.Message, want[i].message):
				return fmt.Errorf("%+v, %+v", t, t.Nack)
			}
		}
		return nil
	}))
}
