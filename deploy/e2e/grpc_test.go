package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig/xdsclient"
	"meshlog.dev/deploy/testkit/program"
)

const (
	greeterFile   = "greeter.yaml"
	greeterClient = "client-1"
)

// greeter is a service that gRPC clients call by its name, in two versions.
func greeter(v1, v2 int, endpoints ...string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: greeter, namespace: demo}
spec:
  hosts: [greeter.internal]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [%s]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: greeter, namespace: demo}
spec:
  host: greeter.internal
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: greeter, namespace: demo}
spec:
  hosts: [greeter.internal]
  http:
    - route:
        - {destination: {host: greeter.internal, subset: v1}, weight: %d}
        - {destination: {host: greeter.internal, subset: v2}, weight: %d}
`, strings.Join(endpoints, ", "), v1, v2)
}

// A gRPC client without a proxy resolves and calls through the frontends that
// configure Envoys. Weights move its calls, the removal of an endpoint loses no
// call, and calls continue when any frontend dies, or all frontends and every
// other process (G3, G5, G8, G12).
//
// No weight is 0 here: a call that comes while a cluster is new to a channel may
// fail with "unknown cluster selected for RPC" and is not retried, because
// grpc-go applies routes a moment before the clusters that they name, whatever
// the frontends send.
func TestGRPCClient(t *testing.T) {
	f := start(t, apart(1, 2))
	one, twin, two := f.grpcBackend("v1"), f.grpcBackend("v1-twin"), f.grpcBackend("v2")
	at := func(b *xdsclient.Backend, version string) string {
		return fmt.Sprintf("{address: 127.0.0.1, ports: {grpc: %d}, labels: {version: %s}}", b.Port, version)
	}
	v1, v1Twin, v2 := at(one, "v1"), at(twin, "v1"), at(two, "v2")
	f.save(greeterFile, greeter(90, 10, v1, v2))
	var ports []int
	for _, s := range f.mesh.Frontends {
		ports = append(ports, s.XDS)
	}
	c, err := xdsclient.Dial(greeterClient, "greeter.internal:80", ports)
	f.must(err)
	f.Cleanup(func() { f.must(c.Close()) })
	f.must(program.Until(f.ctx, "the first call", func(ctx context.Context) error { return c.Send(ctx, 1).Err() }))
	f.callShare(c, two, 10)

	f.duringCalls(c, "the weights change, and an endpoint comes and goes", func() {
		f.save(greeterFile, greeter(10, 90, v1, v2))
		f.callsGo(c, two, 60, 100)
		f.callShare(c, two, 90)
		f.save(greeterFile, greeter(90, 10, v1, v1Twin, v2))
		f.callsGo(c, twin, 25, 100)
		f.callShare(c, twin, 45)
		f.save(greeterFile, greeter(90, 10, v1, v2))
		f.callsGo(c, twin, 0, 0)
		twin.Stop()
		f.callShare(c, one, 90)
	})
	f.duringCalls(c, "frontends are killed", func() {
		for _, s := range f.mesh.Frontends {
			s.Kill()
			f.save(greeterFile, greeter(10, 90, v1, v2))
			f.callsGo(c, two, 60, 100)
			f.save(greeterFile, greeter(90, 10, v1, v2))
			f.callsGo(c, one, 60, 100)
			f.must(s.Restart())
			f.must(s.Ready(f.ctx))
		}
	})
	f.duringCalls(c, "all frontends restart with everything else down", func() {
		f.onlyFrontends()
		f.restartFrontends()
		f.back(greeterClient)
		f.callShare(c, one, 90)
	})
}

func (f *fixture) grpcBackend(name string) *xdsclient.Backend {
	f.Helper()
	b, err := xdsclient.StartBackend(name)
	f.must(err)
	f.Cleanup(b.Stop)
	return b
}

// duringCalls does what during does, for the calls of a gRPC client.
func (f *fixture) duringCalls(c *xdsclient.Client, what string, happens func()) {
	f.Helper()
	load, err := c.StartLoad(f.ctx, 4)
	f.must(err)
	defer load.Stop()
	happens()
	if err := load.Stop().Err(); err != nil {
		f.Errorf("calls while %s: %v", what, err)
	}
}

// callsGo waits until a backend answers a share of the calls between two limits,
// in percent.
func (f *fixture) callsGo(c *xdsclient.Client, to *xdsclient.Backend, atLeast, atMost float64) {
	f.Helper()
	f.must(program.Until(f.ctx, "calls to move", func(ctx context.Context) error {
		t := c.Send(ctx, 60)
		if got := t.Share(to.Name); got < atLeast || got > atMost {
			return fmt.Errorf("%s answers %.0f %%: %+v", to.Name, got, t)
		}
		return nil
	}))
}

// callShare does what share does, for the calls of a gRPC client.
func (f *fixture) callShare(c *xdsclient.Client, backend *xdsclient.Backend, want float64) {
	f.Helper()
	f.checkShare(c.Send(f.ctx, 2000), backend.Name, want)
}
