package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// patience bounds all tests together.
const patience = 5 * time.Minute

// TestMain puts all tests on a network of their own, for their pods.
func TestMain(m *testing.M) {
	if err := rig.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// world holds two clusters, a mesh that watches both, and two Envoys: one with state
// of the world and one with delta. The shop is configured in the east; its Service is
// in both.
type world struct {
	dir        string
	east, west *cluster.Cluster
	shop       *cluster.Shop
	mesh       *rig.Mesh
	envoys     []*rig.Envoy
	v1, v2     *cluster.Pod // in the east
	far        *cluster.Pod // v1 in the west
}

// The watchers of the two clusters, in the mesh.
const (
	eastern = iota
	western // and its twin
)

func start(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{dir: t.TempDir()}
	var err error
	w.shop, err = cluster.NewShop(w.dir, "sotw", "delta")
	must(t, err)
	w.startClusters(ctx, t)
	must(t, w.shop.Apply(ctx, w.east))
	must(t, w.shop.ApplyService(ctx, w.west))
	w.v1, w.v2, w.far = run(ctx, t, w.east, "v1"), run(ctx, t, w.east, "v2"), run(ctx, t, w.west, "v1")

	nats, err := rig.StartNATS(ctx, w.dir)
	must(t, err)
	w.mesh, err = rig.Assemble(ctx, w.dir, "", rig.Parts{
		NATS: nats, Builders: 1, Frontends: 1,
		Kube: []rig.KubeCluster{
			{Name: w.east.Name, Kubeconfig: w.east.Kubeconfig, Watchers: 1},
			{Name: w.west.Name, Kubeconfig: w.west.Kubeconfig, Watchers: 2},
		},
	})
	must(t, err)
	t.Cleanup(w.mesh.End)
	t.Cleanup(func() { w.explain(t) })
	for _, e := range w.shop.Edges {
		envoy, err := w.mesh.Join(ctx, rig.EnvoyConfig{
			Node: e.App, Delta: e.App == "delta",
			Overlay: fmt.Sprintf("node: {id: %[1]s, cluster: demo, metadata: {LABELS: {app: %[1]s}}}", e.App),
		}, e.Port)
		must(t, err)
		t.Cleanup(envoy.Kill)
		w.envoys = append(w.envoys, envoy)
	}
	return w
}

// startClusters starts both at once, because each start is mostly waiting.
func (w *world) startClusters(ctx context.Context, t *testing.T) {
	t.Helper()
	type started struct {
		cluster *cluster.Cluster
		err     error
	}
	start := func(name string) chan started {
		c := make(chan started, 1)
		go func() {
			one, err := cluster.Start(ctx, w.dir, name)
			c <- started{one, err}
		}()
		return c
	}
	east, west := start("east"), start("west")
	for to, from := range map[**cluster.Cluster]chan started{&w.east: east, &w.west: west} {
		s := <-from
		if s.cluster != nil {
			t.Cleanup(s.cluster.End)
		}
		if *to = s.cluster; s.err != nil {
			t.Error(s.err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// explain logs the last output of each process if a test has failed.
func (w *world) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, s := range w.mesh.Servers() {
		t.Logf("Last output of %s:\n%s", s.Name, s.Tail(15))
	}
	for _, c := range []*cluster.Cluster{w.east, w.west} {
		t.Logf("Last output of the API server of %s:\n%s", c.Name, c.API.Tail(5))
	}
}

// run starts a pod of the shop.
func run(ctx context.Context, t *testing.T, c *cluster.Cluster, version string) *cluster.Pod {
	t.Helper()
	p, err := c.Run(ctx, cluster.Namespace, cluster.Service, version)
	must(t, err)
	return p
}

// known waits until both Envoys send requests to a pod, or with want false, no
// longer do.
func (w *world) known(ctx context.Context, t *testing.T, p *cluster.Pod, want bool) {
	t.Helper()
	of := fmt.Sprintf("outbound|80|%s|%s", p.Version, cluster.Host)
	for _, e := range w.envoys {
		must(t, e.UntilAlive(ctx, fmt.Sprintf("%s to have %s: %t", e.Name, p.Name, want), func(ctx context.Context) error {
			hosts, err := e.Hosts(ctx, of)
			if err == nil && hosts[p.Addr] != want {
				err = fmt.Errorf("%s has %v, where true means that it gets requests", of, hosts)
			}
			return err
		}))
	}
	w.settle(ctx, t)
}

// remove ends a pod, deletes its objects, and waits until the served version has
// none of them.
func (w *world) remove(ctx context.Context, t *testing.T, p *cluster.Pod) {
	t.Helper()
	must(t, p.Remove(ctx))
	must(t, program.Until(ctx, "the objects of "+p.Name+" to be gone", func(ctx context.Context) error {
		var v struct{ Objects []struct{ Object string } }
		err := w.mesh.CLI(ctx, &v, "show", w.serving(ctx, t).String(), "--name", p.Name)
		if err == nil && len(v.Objects) > 0 {
			err = fmt.Errorf("%v are there", v.Objects)
		}
		return err
	}))
}

// settle lets the requests pass that Envoy workers accept before Envoy's main
// thread hands them the acknowledged configuration.
func (w *world) settle(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, e := range w.shop.Edges {
		rig.Send(ctx, e.URL(), 20)
	}
}

// asked waits until each of the pods got a request.
func (w *world) asked(ctx context.Context, t *testing.T, pods ...*cluster.Pod) {
	t.Helper()
	before := map[*cluster.Pod]int64{}
	for _, p := range pods {
		before[p] = p.Served()
	}
	must(t, program.Until(ctx, "requests to all pods", func(ctx context.Context) error {
		for _, e := range w.shop.Edges {
			if err := rig.Send(ctx, e.URL(), 20).Err(); err != nil {
				return err
			}
		}
		for p, n := range before {
			if p.Served() == n {
				return fmt.Errorf("none reached %s of %s", p.Name, p.Cluster())
			}
		}
		return nil
	}))
}

// weigh applies new weights, and waits until requests have moved.
func (w *world) weigh(ctx context.Context, t *testing.T, v1, v2 int) {
	t.Helper()
	before := w.serving(ctx, t)
	_, err := w.shop.Weigh(ctx, w.east, "kubectl", v1, v2)
	must(t, err)
	w.acked(ctx, t, rig.RouteConfiguration, before)
}

// serving returns the version that the frontend serves.
func (w *world) serving(ctx context.Context, t *testing.T) rig.Version {
	t.Helper()
	var r rig.FrontendReport
	must(t, w.mesh.Frontends[0].Debug(ctx, "frontend", &r))
	return r.Serving
}

// acked waits until both Envoys have acknowledged a type in a newer version.
func (w *world) acked(ctx context.Context, t *testing.T, typeURL string, before rig.Version) {
	t.Helper()
	for _, e := range w.envoys {
		_, err := w.mesh.Acked(ctx, e.Name, typeURL, before)
		must(t, err)
	}
	w.settle(ctx, t)
}

// share demands that a version answers so many percent of requests, plus or minus
// six: more than five standard deviations.
func (w *world) share(ctx context.Context, t *testing.T, version string, want float64) {
	t.Helper()
	for _, e := range w.shop.Edges {
		tally := rig.Send(ctx, e.URL(), 2000)
		must(t, tally.Err())
		got := tally.Share(cluster.Service + "-" + version)
		exact := want == 0 || want == 100
		if exact && got != want || got < want-6 || got > want+6 {
			t.Errorf("%s: %s answered %.1f %%, want %.0f %%", e.App, version, got, want)
		}
	}
}

// during runs an action while requests flow through both Envoys, and demands that
// every request is answered.
func (w *world) during(ctx context.Context, t *testing.T, happens func()) {
	t.Helper()
	var loads []*rig.Load
	defer func() {
		for i, l := range loads {
			if err := l.Stop().Err(); err != nil {
				t.Errorf("requests through %s: %v", w.shop.Edges[i].App, err)
			}
		}
	}()
	for _, e := range w.shop.Edges {
		l, err := rig.StartLoad(ctx, e.URL(), 4)
		must(t, err)
		loads = append(loads, l)
	}
	happens()
}

// source is meshlog's report of a cluster (meshlog sources).
type source struct {
	Source, Instance, State, Holder string
	Frozen                          bool
	Objects                         int
	Standbys                        []string
	FrozenKinds                     []struct {
		Kind    string
		Objects int
	}
	Problems []rig.Diagnostic
}

func (w *world) source(ctx context.Context, c *cluster.Cluster) (source, error) {
	var all []source
	if err := w.mesh.CLI(ctx, &all, "sources"); err != nil {
		return source{}, err
	}
	for _, s := range all {
		if s.Source == "kubernetes" && s.Instance == c.Name {
			return s, nil
		}
	}
	return source{}, fmt.Errorf("no source kubernetes/%s in %+v", c.Name, all)
}

// untilSource waits until meshlog reports a cluster as wanted.
func (w *world) untilSource(ctx context.Context, t *testing.T, c *cluster.Cluster, what string, is func(source) bool) source {
	t.Helper()
	var s source
	must(t, program.Until(ctx, c.Name+" to be "+what, func(ctx context.Context) (err error) {
		if s, err = w.source(ctx, c); err == nil && !is(s) {
			err = fmt.Errorf("it is %+v", s)
		}
		return err
	}))
	return s
}

func following(s source) bool { return s.State == "following" }

func down(s source) bool { return s.State == "down" && s.Frozen }

// objects returns how many objects of each cluster are served.
func (w *world) objects(ctx context.Context, t *testing.T) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, c := range []*cluster.Cluster{w.east, w.west} {
		s, err := w.source(ctx, c)
		must(t, err)
		n[c.Name] = s.Objects
	}
	return n
}

// same demands that the served configuration is that of an earlier version.
func (w *world) same(ctx context.Context, t *testing.T, before rig.Version) {
	t.Helper()
	var diff struct {
		Changes []struct{ Object, Change string }
	}
	must(t, w.mesh.CLI(ctx, &diff, "diff", before.String(), "latest"))
	for _, c := range diff.Changes {
		t.Errorf("since version %s: %s %s", before, c.Object, c.Change)
	}
}

// nothingRejected demands that the Envoys rejected no response.
func (w *world) nothingRejected(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, e := range w.envoys {
		if n, err := e.Rejected(ctx); err != nil || n != 0 {
			t.Errorf("%s rejected %d responses, %v", e.Name, n, err)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
