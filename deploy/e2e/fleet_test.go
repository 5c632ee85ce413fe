package e2e

import (
	"context"
	"fmt"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// modes are the two variants of the protocol.
var modes = map[string]bool{"sotw": false, "delta": true}

// Three frontends configure an Envoy, in both variants of the protocol. A canary
// moves real requests, endpoints and whole services come and go without a failed
// request, and no request fails when any frontend dies.
func TestThreeFrontends(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 3), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			weights(f)
			endpoints(f)
			services(f)
			f.nothingRejected()
			frontendsDie(f)
			f.nothingRejected()
			generatedIsValid(f)
		})
	}
}

// blue is another service of the shop, with the route to it.
const blue = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: blue, namespace: demo}
spec:
  hosts: [blue.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints:
  - {address: 127.0.0.1, ports: {http: %d}}
`

// moved are the routes to blue.
const moved = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
    - route: [{destination: {host: blue.internal}}]
`

// A service and the route to it are added, and removed together, while requests
// flow: none fails (E3, E5, I3).
func services(f *fixture) {
	other := f.backend("blue")
	good := f.read(shop.Routes)
	f.during("a service and its route come and go", func() {
		for range 3 {
			// Both in one save: one batch, one version.
			f.save(shop.Routes, moved+"---"+fmt.Sprintf(blue, other.Port))
			f.acked(rig.RouteConfiguration)
			f.share(other.Name, 100)
			f.save(shop.Routes, good)
			f.acked(rig.RouteConfiguration)
			f.share(other.Name, 0)
		}
	})
}

// frontendsDie kills each frontend in turn, including the one that Envoy is
// connected to. A change made meanwhile arrives through another.
func frontendsDie(f *fixture) {
	f.during("frontends are killed", func() {
		for i, s := range f.mesh.Frontends {
			s.Kill()
			f.shift(100*(i%2), 100-100*(i%2))
			f.must(s.Restart())
			f.must(s.Ready(f.ctx))
		}
	})
}

// A frontend that lags behind the others never takes an Envoy back to an older
// version (I5): it answers once it has caught up.
func TestFrontendLags(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			f.shift(100, 0)
			connected, other := f.connected()
			f.during("a frontend lags", func() {
				f.must(other.Pause())
				f.shift(0, 100) // only one frontend has the change
				f.share(shop.V2, 100)
				connected.Kill() // leaves Envoy only the frontend that lags
				f.must(f.envoy.Connected(f.ctx, false))
				f.must(other.Resume())
				f.must(f.envoy.Connected(f.ctx, true))
				f.share(shop.V2, 100)
			})
			f.nothingRejected()
		})
	}
}

// connected returns the frontend that Envoy is connected to, and another.
func (f *fixture) connected() (it, other *rig.Server) {
	f.Helper()
	f.must(program.Until(f.ctx, "a frontend that has "+node, func(ctx context.Context) error {
		it, other = nil, nil
		for _, s := range f.mesh.Frontends {
			var r rig.FrontendReport
			if err := s.Debug(ctx, "frontend", &r); err != nil {
				return err
			}
			if len(r.Proxies) > 0 {
				it = s
			} else {
				other = s
			}
		}
		if it == nil || other == nil {
			return fmt.Errorf("connected to %v, not to %v", it, other)
		}
		return nil
	}))
	return it, other
}
