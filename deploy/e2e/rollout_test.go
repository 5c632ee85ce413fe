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

// canaryFirst gives changes to the Envoys of one cluster first. All others wait for an
// operator.
const canaryFirst = `
apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec: {rollout: {steps: [{proxies: [{cluster: canary}], manual: true}]}}
`

// rollout is an entry of `meshlog rollout status`.
type rollout struct {
	ID, State, Reached, Reason, WaitsFor string
	Step                                 int
	Objects                              []string
	Streams, Applied                     int
}

// groups are two groups of Envoys, each with one of state of the world and one of delta.
type groups struct {
	*fixture
	canary, rest []*rig.Envoy
	to, of       []string // the URLs of the Envoys of canary and of rest
	routes       func(v1, v2 int) string
}

// startGroups starts the groups, with all requests answered by v1, and then switches
// rollouts on.
func startGroups(t *testing.T) *groups {
	t.Helper()
	g := &groups{fixture: startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "rest"})}
	g.rest, g.of = []*rig.Envoy{g.envoy}, []string{g.shop.URL()}
	others := []struct {
		node, cluster string
		delta         bool
	}{{"canary-1", "canary", false}, {"canary-2", "canary", true}, {"rest-2", "rest", true}}
	ports, gateways, names := map[string]int{}, "", "edge"
	for _, o := range others {
		ports[o.node] = g.freePort()
		names += ", " + o.node
		gateways += "---\n" + strings.NewReplacer(
			"name: edge", "name: "+o.node, "app: edge", "app: "+o.node,
			fmt.Sprintf("number: %d", g.shop.Port), fmt.Sprintf("number: %d", ports[o.node])).Replace(g.read("gateway.yaml"))
	}
	g.routes = func(v1, v2 int) string {
		return strings.Replace(g.weighted(v1, v2), "gateways: [edge]", "gateways: ["+names+"]", 1)
	}
	g.save("gateways.yaml", gateways)
	g.save(shop.Routes, g.routes(100, 0))
	for _, o := range others {
		e, err := g.mesh.Join(g.ctx, rig.EnvoyConfig{
			Node: o.node, Delta: o.delta,
			Overlay: fmt.Sprintf("node: {id: %s, cluster: %s, metadata: {LABELS: {app: %s}}}", o.node, o.cluster, o.node),
		}, ports[o.node])
		g.must(err)
		g.Cleanup(e.Kill)
		url := fmt.Sprintf("http://127.0.0.1:%d/", ports[o.node])
		if o.cluster == "canary" {
			g.canary, g.to = append(g.canary, e), append(g.to, url)
		} else {
			g.rest, g.of = append(g.rest, e), append(g.of, url)
		}
	}
	g.each(g.to, shop.V1)
	g.each(g.of, shop.V1)
	g.save("policy.yaml", canaryFirst)
	return g
}

// each waits until requests to each URL are answered by one backend alone.
func (g *groups) each(urls []string, backend string) {
	g.Helper()
	for _, url := range urls {
		g.goes(url, backend)
	}
}

// while runs an action while requests flow through all Envoys. It demands that each is
// answered, and those through the Envoys of rest by the wanted backends only.
func (g *groups) while(what string, rest []string, happens func()) {
	g.Helper()
	var loads [2]*rig.Load
	for i, urls := range [][]string{g.to, g.of} {
		load, err := rig.StartLoads(g.ctx, 4, urls...)
		g.must(err)
		defer load.Stop()
		loads[i] = load
	}
	happens()
	canary, others := loads[0].Stop(), loads[1].Stop()
	g.Logf("%s: canary %v, rest %v", what, canary.Backends, others.Backends)
	if err := canary.Err(); err != nil {
		g.Errorf("requests to canary while %s: %v", what, err)
	}
	if err := others.Err(); err != nil {
		g.Errorf("requests to rest while %s: %v", what, err)
	}
	for backend, n := range others.Backends {
		if !slices.Contains(rest, backend) {
			g.Errorf("while %s: %s has answered %d requests through Envoys that the change has not reached", what, backend, n)
		}
	}
}

// rollouts waits until the rollouts with objects are in these states.
func (g *groups) rollouts(states ...string) (got []rollout) {
	g.Helper()
	g.must(program.Until(g.ctx, fmt.Sprintf("rollouts %v", states), func(ctx context.Context) error {
		got = nil
		if err := g.mesh.CLI(ctx, &got, "rollout", "status"); err != nil {
			return err
		}
		var is []string
		for _, r := range got {
			is = append(is, r.State)
		}
		if !slices.Equal(is, states) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	}))
	return got
}

// waitsForOperator waits until one rollout runs, which all Envoys of canary have applied and
// which waits for an operator.
func (g *groups) waitsForOperator() {
	g.Helper()
	g.must(program.Until(g.ctx, "the rollout to wait for an operator", func(ctx context.Context) error {
		var all []rollout
		if err := g.mesh.CLI(ctx, &all, "rollout", "status"); err != nil {
			return err
		}
		if len(all) != 1 || all[0].State != "running" || all[0].Streams != 2 || all[0].Applied != 2 || all[0].WaitsFor != "`meshlog rollout promote`" {
			return fmt.Errorf("%+v", all)
		}
		return nil
	}))
}

// promote gives a rollout to all proxies.
func (g *groups) promote(args ...string) {
	g.Helper()
	out, err := g.mesh.Show(g.ctx, append([]string{"rollout", "promote", "--reason", "canary is fine"}, args...)...)
	g.must(err)
	if !strings.Contains(out, "All proxies have rollout-") {
		g.Errorf("promote prints %q", out)
	}
}

// rejected returns how many responses the Envoys have rejected.
func (g *groups) rejected(envoys []*rig.Envoy) (total int) {
	g.Helper()
	for _, e := range envoys {
		n, err := e.Rejected(g.ctx)
		g.must(err)
		total += n
	}
	return total
}

// Two groups of Envoys and a policy by which changes reach the first one first. New routes
// reach the others when an operator promotes them; endpoints reach all at once. A change
// that an Envoy of the first group rejects is taken back there, with all that came with it,
// and never reaches the second group; what is left of it reaches all when an operator says so.
func TestRollout(t *testing.T) {
	g := startGroups(t)
	const v1, v2 = "shop-v1, moved", "shop-v2, moved"
	g.while("new routes reach canary", []string{shop.V1, v1}, func() {
		g.save(shop.Routes, g.routes(0, 100))
		g.each(g.to, shop.V2)
		g.each(g.of, shop.V1)
		_, err := g.shop.Endpoints([]int{g.backend(v1).Port}, []int{g.backend(v2).Port})
		g.must(err)
		g.each(g.to, v2)
		g.each(g.of, v1)
		g.waitsForOperator()
	})
	g.while("the routes reach all", []string{v1, v2}, func() {
		g.promote()
		g.each(g.of, v2)
		g.each(g.to, v2)
		g.rollouts()
	})

	g.while("an Envoy of canary rejects a change", []string{v2}, func() {
		g.save(shop.Routes, g.routes(100, 0)+"---"+trusting)
		r := g.rollouts("stopped")[0]
		if !strings.Contains(r.Reason, "trusting") || len(r.Objects) != 2 {
			g.Errorf("the rollout that was stopped: %+v", r)
		}
		g.each(g.to, v2)
		g.shown() // nothing is in quarantine, and no Envoy is left with a rejection
	})
	if n := g.rejected(g.canary); n == 0 {
		g.Error("no Envoy of canary has rejected anything")
	}
	if n := g.rejected(g.rest); n > 0 {
		g.Errorf("Envoys of rest, which the rollout had not reached, have rejected %d responses", n)
	}
	// The cluster is gone. The routes, which were in the same rollout, wait for an operator: they
	// are as they were when it was stopped.
	g.save(shop.Routes, g.routes(100, 0))
	var stopped rollout
	g.must(program.Until(g.ctx, "the rollout to have one object", func(context.Context) error {
		if stopped = g.rollouts("stopped")[0]; !slices.Equal(stopped.Objects, []string{"VirtualService demo/shop (file/default)"}) {
			return fmt.Errorf("%+v", stopped)
		}
		return nil
	}))
	g.while("the routes are released", []string{v1, v2}, func() {
		g.promote("--all", stopped.ID)
		g.each(g.to, v1)
		g.each(g.of, v1)
		g.rollouts()
	})
}
