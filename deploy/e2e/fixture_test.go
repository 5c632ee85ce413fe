// Package e2e tests the programs in bin/ from outside, with a real NATS server
// and a real Envoy: how a saved file changes running requests, and how requests
// fare when a process dies.
package e2e

import (
	"context"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// patience bounds each test.
const patience = 2 * time.Minute

// node is the Envoy of a test.
const node = "envoy-1"

// fixture is the shop, served by an Envoy that a mesh configures.
type fixture struct {
	*testing.T
	ctx    context.Context
	shop   *shop.Shop
	v1, v2 *rig.Backend
	mesh   *rig.Mesh
	envoy  *rig.Envoy
	// seen is the newest version that Envoy is known to have.
	seen rig.Version
}

// arrangement starts a mesh on a directory of configuration.
type arrangement func(ctx context.Context, dir, config string) (*rig.Mesh, error)

// apart runs every part as a separate process.
func apart(builders, frontends int) arrangement {
	return func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		return rig.Apart(ctx, dir, config, builders, frontends)
	}
}

func start(t *testing.T, arranged arrangement) *fixture {
	t.Helper()
	return startWith(t, arranged, rig.EnvoyConfig{Node: node, Cluster: "demo"})
}

// startWith is start with another Envoy.
func startWith(t *testing.T, arranged arrangement, c rig.EnvoyConfig) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	f := &fixture{T: t, ctx: ctx}
	f.v1, f.v2 = f.backend(shop.V1), f.backend(shop.V2)
	dir := t.TempDir()
	var err error
	if f.shop, err = shop.New(dir, []int{f.v1.Port}, []int{f.v2.Port}); err != nil {
		t.Fatal(err)
	}
	if f.mesh, err = arranged(ctx, dir, f.shop.Path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.mesh.End)
	if f.envoy, err = f.mesh.Join(ctx, c, f.shop.Port); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.envoy.Kill)
	t.Cleanup(f.explain)
	first, err := f.mesh.Acked(ctx, node, rig.RouteConfiguration, rig.Version{})
	f.must(err)
	f.seen = first.Acked
	return f
}

// explain logs the last output of each process if the test has failed.
func (f *fixture) explain() {
	if !f.Failed() {
		return
	}
	f.Logf("Last output of %s:\n%s", f.envoy.Name, f.envoy.Tail(15))
	for _, s := range f.mesh.Servers() {
		f.Logf("Last output of %s:\n%s", s.Name, s.Tail(15))
	}
}

func (f *fixture) backend(name string) *rig.Backend {
	f.Helper()
	b, err := rig.StartBackend(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(b.Stop)
	return b
}

// during runs an action while requests flow, and demands that every request is
// answered.
func (f *fixture) during(what string, happens func()) {
	f.Helper()
	load, err := rig.StartLoad(f.ctx, f.shop.URL(), 4)
	if err != nil {
		f.Fatal(err)
	}
	defer load.Stop()
	happens()
	if err := load.Stop().Err(); err != nil {
		f.Errorf("requests while %s: %v", what, err)
	}
}

// acked waits until Envoy has acknowledged the change of a save, in a version
// newer than any before.
func (f *fixture) acked(typeURL string) {
	f.Helper()
	t, err := f.mesh.Acked(f.ctx, node, typeURL, f.seen)
	f.must(err)
	f.seen = t.Acked
	f.settle()
}

// weigh saves new weights.
func (f *fixture) weigh(v1, v2 int) {
	f.Helper()
	_, err := f.shop.Weights(v1, v2)
	f.must(err)
}

// shift saves new weights, and waits until requests have moved.
func (f *fixture) shift(v1, v2 int) {
	f.Helper()
	f.weigh(v1, v2)
	f.acked(rig.RouteConfiguration)
}

// endpoints saves where the versions run, and waits until requests go there.
func (f *fixture) endpoints(v1, v2 []int) {
	f.Helper()
	_, err := f.shop.Endpoints(v1, v2)
	f.must(err)
	f.acked(rig.ClusterLoadAssignment)
}

// settle lets the requests pass that an Envoy worker accepts before Envoy's main
// thread hands it the acknowledged configuration.
func (f *fixture) settle() {
	f.Helper()
	if err := rig.Send(f.ctx, f.shop.URL(), 20).Err(); err != nil {
		f.Fatal(err)
	}
}

// share sends requests and demands that a backend answers so many percent of
// them, plus or minus six: more than five standard deviations.
func (f *fixture) share(backend string, want float64) {
	f.Helper()
	f.checkShare(rig.Send(f.ctx, f.shop.URL(), 2000), backend, want)
}

func (f *fixture) checkShare(t rig.Tally, backend string, want float64) {
	f.Helper()
	if err := t.Err(); err != nil {
		f.Error(err)
	}
	got := t.Share(backend)
	exact := want == 0 || want == 100
	if exact && got != want || got < want-6 || got > want+6 {
		f.Errorf("%s answered %.1f %% of %d requests, want %.0f %%", backend, got, t.Sent, want)
	}
}

// nothingRejected demands that Envoy rejected no response.
func (f *fixture) nothingRejected() {
	f.Helper()
	if n, err := f.envoy.Rejected(f.ctx); err != nil || n != 0 {
		f.Errorf("%s rejected %d responses, %v", node, n, err)
	}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}
