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
)

// ownListener is a listener of the Envoys of one cluster, with the routes that
// all of them share.
const ownListener = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: %[1]s, namespace: istio-system}
spec:
  nodes: {cluster: %[1]s}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: %[1]s
    address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}
    filter_chains:
      - filters:
          - name: envoy.filters.network.http_connection_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: own
              rds: {route_config_name: common, config_source: {ads: {}, resource_api_version: V3}}
              http_filters:
                - name: envoy.filters.http.router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
---`

// commonRoutes are routes that all Envoys share. Envoy rejects routes to a
// cluster that does not exist.
const commonRoutes = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: common-routes, namespace: istio-system}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: common
    validate_clusters: true
    virtual_hosts:
      - name: common
        domains: ["*"]
        routes:
          - match: {prefix: /other}
            route: {cluster: %s}
          - match: {prefix: /}
            direct_response: {status: 200, body: {inline_string: %s}}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: common-cluster, namespace: istio-system}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: common
    type: STATIC
    load_assignment: {cluster_name: common}
---`

// trusting is a cluster for all Envoys that every Envoy rejects.
const trusting = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: trusting, namespace: istio-system}
spec:
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: trusting
    type: STATIC
    load_assignment: {cluster_name: trusting}
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context: {validation_context: {trusted_ca: {filename: /nowhere/such-ca.pem}}}
---`

// quarantine is an entry of the quarantine (meshlog approve).
type quarantine struct {
	ID, Kind, Type, Resource, Client, Reason string
	LastGood                                 bool
}

// When two Envoys have rejected a resource, no frontend sends it to a third one.
// The third Envoy starts with the last good resource, or without one, and its
// other listeners serve. The quarantine is stored on the log and in files, and
// ends when the content changes.
func TestQuarantine(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(2, 2), rig.EnvoyConfig{Node: node, Cluster: "one", Delta: delta})
			own, urls := "", map[string]string{}
			for _, cluster := range []string{"one", "two", "three", "four"} {
				port := f.freePort()
				own += fmt.Sprintf(ownListener, cluster, port)
				urls[cluster] = fmt.Sprintf("http://127.0.0.1:%d/", port)
			}
			f.save("own.yaml", own)
			f.save("common.yaml", fmt.Sprintf(commonRoutes, "common", "first"))
			f.join(rig.EnvoyConfig{Node: "envoy-2", Cluster: "two", Delta: delta})
			f.goes(urls["one"], "first")
			f.goes(urls["two"], "first")

			var is []quarantine
			f.during("two Envoys reject resources", func() {
				f.save("common.yaml", fmt.Sprintf(commonRoutes, "absent", "second")+trusting)
				is = f.quarantined("CDS trusting", "RDS common, last good")
				for _, q := range is {
					if !strings.HasPrefix(q.Client, "envoy 1.") || q.Reason == "" {
						f.Errorf("in quarantine: %+v", q)
					}
				}
				f.shown(node, "envoy-2")
				f.goes(urls["one"], "first")
				f.goes(urls["two"], "first")
			})
			f.during("others start", func() {
				third := f.join(rig.EnvoyConfig{Node: "envoy-3", Cluster: "three", Delta: delta})
				f.goes(urls["three"], "first")
				f.shown("envoy-3")
				f.weigh(100, 0) // all other changes take effect
				f.goes(f.shop.URL(), shop.V1)
				f.neverRejected(third)
				// A frontend that serves from its file alone has the quarantine
				// too.
				f.mesh.NATS.Kill()
				for _, s := range f.mesh.Frontends {
					s.Kill()
					f.must(s.Restart())
				}
				fourth := f.join(rig.EnvoyConfig{Node: "envoy-4", Cluster: "four", Delta: delta})
				f.goes(urls["four"], "first")
				f.neverRejected(third)
				f.neverRejected(fourth)
				f.must(f.mesh.NATS.Restart(f.ctx))
			})
			// An operator lifts the quarantine, so the resource is sent once more,
			// and the Envoys reject it again.
			f.approved(is[0].ID)
			again := f.quarantined("CDS trusting", "RDS common, last good")
			if again[0].ID == is[0].ID {
				f.Errorf("%s was approved, but is in quarantine under the same id", is[0].ID)
			}
			f.during("the resources are repaired", func() {
				f.save("common.yaml", fmt.Sprintf(commonRoutes, "common", "third"))
				f.quarantined()
				for _, url := range urls {
					f.goes(url, "third")
				}
				f.shown()
			})
		})
	}
}

// join starts another Envoy.
func (f *fixture) join(c rig.EnvoyConfig) *rig.Envoy {
	f.Helper()
	e, err := f.mesh.Join(f.ctx, c, f.shop.Port)
	f.must(err)
	f.Cleanup(e.Kill)
	return e
}

// quarantined waits until exactly the wanted resources are in quarantine, which
// `diagnostics` explains. The result is sorted by type.
func (f *fixture) quarantined(want ...string) (got []quarantine) {
	f.Helper()
	f.must(program.Until(f.ctx, fmt.Sprintf("%v to be in quarantine", want), func(ctx context.Context) error {
		got = nil // json.Unmarshal keeps fields that the JSON omits
		if err := f.mesh.CLI(ctx, &got, "approve"); err != nil {
			return err
		}
		slices.SortFunc(got, func(a, b quarantine) int { return strings.Compare(a.Type, b.Type) })
		var is []string
		for _, q := range got {
			text := q.Type + " " + q.Resource
			if q.LastGood {
				text += ", last good"
			}
			is = append(is, text)
		}
		if !slices.Equal(is, want) {
			return fmt.Errorf("in quarantine: %v", is)
		}
		var ds []rig.Diagnostic
		if err := f.mesh.CLI(ctx, &ds, "diagnostics"); err != nil {
			return err
		}
		ds = slices.DeleteFunc(ds, func(d rig.Diagnostic) bool { return d.Code != "quarantined" })
		if len(ds) != len(want) {
			return fmt.Errorf("diagnostics: %+v", ds)
		}
		return nil
	}))
	return got
}

// shown waits until proxy-status shows, for each of these proxies, that it has
// the replacement of each quarantined resource and rejects nothing any more.
// Without proxies, it waits until no proxy has anything in quarantine.
func (f *fixture) shown(proxies ...string) {
	f.Helper()
	f.must(program.Until(f.ctx, fmt.Sprintf("proxy-status of %v", proxies), func(ctx context.Context) error {
		var all []rig.ProxyStatus
		if err := f.mesh.CLI(ctx, &all, "proxy-status"); err != nil {
			return err
		}
		var got []string
		for _, p := range all {
			for _, t := range p.Types {
				switch {
				case t.Nack != nil || len(t.HeldBack) > 0:
					return fmt.Errorf("%s: %+v, %+v", p.ID, t, t.Nack)
				case len(t.Quarantined) > 0:
					got = append(got, p.ID+" "+t.Type)
				}
			}
		}
		slices.Sort(got)
		for _, p := range proxies {
			if !slices.Contains(got, p+" CDS") || !slices.Contains(got, p+" RDS") {
				return fmt.Errorf("in quarantine: %v", got)
			}
		}
		if len(proxies) == 0 && len(got) > 0 {
			return fmt.Errorf("in quarantine: %v", got)
		}
		return nil
	}))
}

// approved lifts a quarantine.
func (f *fixture) approved(id string) {
	f.Helper()
	f.must(program.Until(f.ctx, "the approval of "+id, func(ctx context.Context) error {
		var done struct{ Version string }
		return f.mesh.CLI(ctx, &done, "approve", id)
	}))
}

func (f *fixture) neverRejected(e *rig.Envoy) {
	f.Helper()
	if n, err := e.Rejected(f.ctx); err != nil || n != 0 {
		f.Errorf("%s rejected %d responses, %v", e.Name, n, err)
	}
}
