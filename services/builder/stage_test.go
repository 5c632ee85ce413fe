package builder

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// staged accepts every value and stages all kinds but the policy.
type staged struct{ anything }

func (staged) Stages(kind string) bool { return kind != "MeshPolicy" }

// policy makes the source offer the policy of the mesh.
func (r *rig) policy(p *configv1.MeshPolicy) {
	r.t.Helper()
	b, err := proto.Marshal(p)
	if err != nil {
		r.t.Fatal(err)
	}
	k := ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "MeshPolicy", Name: world.CountedName}
	r.offered[k] = ident.Value{Type: "type.googleapis.com/meshlog.config.v1.MeshPolicy", Bytes: b}
	r.object(k, events.Put, r.offered[k])
}

func selects(namespace string) *configv1.RolloutStep {
	return &configv1.RolloutStep{Proxies: []*configv1.ProxySelector{{Namespace: namespace}}}
}

func (r *rig) stagedLeader(id string, file *memstore.File) *driver {
	r.t.Helper()
	c := r.config(id, "one", file)
	c.Judge = staged{}
	return r.start(c, true)
}

// staging returns a leader that has published the cluster b with a timeout of 1 s, and a
// policy: first the proxies of canary and then, a minute later at the earliest, those of
// shop.
func stagingB(t *testing.T) (*rig, *driver) {
	t.Helper()
	r := newRig(t)
	d := r.stagedLeader("b0", &memstore.File{})
	d.settle()
	r.list()
	r.cluster("b", 1)
	second := selects("shop")
	second.Hold = durationpb.New(time.Minute)
	r.policy(&configv1.MeshPolicy{Rollout: &configv1.Rollout{Steps: []*configv1.RolloutStep{selects("canary"), second}}})
	d.settle()
	r.pass(time.Minute)
	return r, d
}

// timeouts returns the timeouts, in seconds, of the cluster b that proxies of the
// namespaces canary, shop and rest are served by the head; 0: they have none.
func (r *rig) timeouts() (all [3]int64) {
	r.t.Helper()
	return r.timeoutsIn(r.world())
}

// timeoutsIn is timeouts of another world than the head's.
func (r *rig) timeoutsIn(w *world.World) (all [3]int64) {
	r.t.Helper()
	pc := index.NewPushContext(w)
	for i, namespace := range []string{"canary", "shop", "rest"} {
		class := index.Classify(pc, &proxy.Proxy{ID: "p", Namespace: namespace}).Only(ident.CDS)
		if made := xds.NewCatalog(pc).Set(class, ident.CDS).Find("b"); made != nil {
			c := &clusterv3.Cluster{}
			if err := proto.Unmarshal(made.Value(), c); err != nil {
				r.t.Fatal(err)
			}
			all[i] = c.GetConnectTimeout().GetSeconds()
		}
	}
	return all
}

// world returns that of the head.
func (r *rig) world() *world.World {
	r.t.Helper()
	all := r.versions()
	return r.worldAt(store.VersionOf(all[len(all)-1].GetVersion()))
}

func (r *rig) worldAt(v ident.Position) *world.World {
	r.t.Helper()
	at, err := r.chain.Fetch(r.t.Context(), v)
	if err != nil {
		r.t.Fatal(err)
	}
	change := world.Change{Reset: true}
	for row := range at.Snapshot.Rows() {
		change.Rows = append(change.Rows, world.RowChange{Row: row.Key, Value: row.Value})
	}
	w, _, err := world.NewWorld().Apply(change)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

func (r *rig) wantTimeouts(when string, canary, shop, rest int64) {
	r.t.Helper()
	if diff := cmp.Diff([3]int64{canary, shop, rest}, r.timeouts()); diff != "" {
		r.t.Errorf("%s: timeouts of canary, shop and rest (-want +got):\n%s", when, diff)
	}
}

// reports makes a frontend say that it serves the head, and that so many of the streams
// that the rollout has reached have applied it.
func (r *rig) reports(d *driver, streams, applied uint32, verdicts ...*reportv1.Verdict) {
	r.t.Helper()
	all := r.versions()
	head := all[len(all)-1].GetVersion()
	report := &reportv1.FrontendReport{Frontend: "f1", Serving: head, Verdicts: verdicts}
	for _, o := range r.world().Views() {
		report.Reached = &reportv1.Reached{
			Rollout: o.ID, Step: uint32(o.Rollout.Step), Streams: streams,
			Applied: []*reportv1.Applied{{Version: head, Streams: applied}, {Streams: streams - applied}},
		}
	}
	d.Heard(report)
	if err := d.Tick(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	d.settle()
}

// rollouts returns a line for each rollout, without its id.
func rollouts(d *driver) (all []string) {
	for _, o := range d.Report().GetRollouts() {
		line := strings.Join([]string{o.GetState(), o.GetReached()}, " ")
		if o.GetWaitsFor() != "" {
			line += ", waits for " + o.GetWaitsFor()
		}
		all = append(all, line)
	}
	return all
}

func wantRollouts(t *testing.T, d *driver, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, rollouts(d)); diff != "" {
		t.Errorf("rollouts (-want +got):\n%s", diff)
	}
}

func TestARolloutGoesStepByStep(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("b", 2)
	d.settle()
	r.wantTimeouts("first step", 2, 1, 1)
	r.reports(d, 3, 2)
	r.wantTimeouts("not all have applied it", 2, 1, 1)
	wantRollouts(t, d, "running namespace=canary, waits for 100% of the streams to apply it: 2 of 3 have")
	r.reports(d, 3, 3)
	r.wantTimeouts("second step", 2, 2, 1)
	r.reports(d, 5, 5)
	r.wantTimeouts("it holds", 2, 2, 1)
	r.pass(time.Minute)
	r.reports(d, 5, 5)
	r.wantTimeouts("after the last step", 2, 2, 2)
	wantRollouts(t, d)
	if len(d.Report().GetWarnings()) > 0 {
		t.Errorf("warnings %v", d.Report().GetWarnings())
	}
}

func TestAStepWaitsForAProxyThatItSelects(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("b", 2)
	d.settle()
	r.reports(d, 0, 0)
	wantRollouts(t, d, "running namespace=canary, waits for a proxy that the step selects")
}

func TestWhatChangesDuringARolloutIsTheNextOne(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("b", 2)
	d.settle()
	r.cluster("b", 3)
	d.settle()
	r.cluster("b", 4)
	d.settle()
	r.wantTimeouts("it waits", 2, 1, 1)
	wantRollouts(t, d, "running namespace=canary", "waiting none")
	r.reports(d, 1, 1)
	r.pass(time.Minute)
	r.reports(d, 1, 1)
	r.wantTimeouts("the next one", 4, 2, 2)
}

// A leader finds changes that came before any rollout waited, and those of a new policy.
func TestChangesBesideThePolicyAreStaged(t *testing.T) {
	r := newRig(t)
	d := r.stagedLeader("b0", &memstore.File{})
	d.settle()
	r.list()
	r.cluster("b", 1)
	d.settle()
	r.policy(&configv1.MeshPolicy{Rollout: &configv1.Rollout{Steps: []*configv1.RolloutStep{selects("canary")}}})
	r.cluster("b", 2)
	d.settle()
	r.wantTimeouts("staged", 2, 1, 1)
	r.policy(&configv1.MeshPolicy{})
	d.settle()
	r.wantTimeouts("without the policy", 2, 2, 2)
	wantRollouts(t, d)
}

func TestANackStopsARollout(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("b", 2)
	d.settle()
	r.cluster("b", 3)
	r.cluster("a", 1)
	d.settle()
	r.wantTimeouts("running", 2, 1, 1)
	r.reports(d, 2, 1, r.rejects("canary"))
	r.wantTimeouts("the change that waited", 3, 1, 1)
	r.reports(d, 2, 1, r.rejects("canary"))
	r.wantTimeouts("stopped", 1, 1, 1)
	wantStopped(t, d, "stopped none")
	if got := d.Report().GetQuarantines(); len(got) > 0 {
		t.Errorf("quarantines %v", got)
	}
	r.cluster("b", 4)
	d.settle()
	r.wantTimeouts("another value", 4, 1, 1)
}

// wantStopped checks the rollouts that were stopped and have values.
func wantStopped(t *testing.T, d *driver, want ...string) {
	t.Helper()
	var got []string
	for _, line := range rollouts(d) {
		if strings.HasPrefix(line, "stopped") {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stopped rollouts (-want +got):\n%s", diff)
	}
	for _, m := range d.diagnostics() {
		if m.GetCode() == "rollout-stopped" && strings.Contains(m.GetReason(), "it is bad") {
			return
		}
	}
	t.Errorf("no diagnostic says why: %v", d.diagnostics())
}

// rejects returns a verdict of a proxy of a namespace about the cluster b as the head has it.
func (r *rig) rejects(namespace string) *reportv1.Verdict {
	r.t.Helper()
	pc := index.NewPushContext(r.world())
	class := index.Classify(pc, &proxy.Proxy{ID: "p", Namespace: namespace}).Only(ident.CDS)
	made := xds.NewCatalog(pc).Set(class, ident.CDS).Find("b")
	return &reportv1.Verdict{
		TypeUrl: ident.CDS.URL(), Name: "b", Sum: made.Sum[:], Client: release, Class: class.Encode(), Message: "it is bad",
		Rejected: 1, Rejectors: []*reportv1.Rejector{{Proxy: "p", Address: "10.0.0.1"}},
	}
}

func TestARejectionOfWhatAllHaveStopsNoRollout(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("a", 1)
	d.settle()
	r.reports(d, 2, 1, r.rejects("canary"))
	wantRollouts(t, d, "running namespace=canary, waits for 100% of the streams to apply it: 1 of 2 have")
}

func TestAnotherLeaderGoesOnWithARollout(t *testing.T) {
	r, d := stagingB(t)
	r.cluster("b", 2)
	d.settle()
	r.reports(d, 3, 3)
	r.wantTimeouts("second step", 2, 2, 1)
	d.Lead(false)
	next := r.stagedLeader("b1", &memstore.File{})
	next.settle()
	r.pass(30 * time.Second)
	r.reports(next, 5, 5)
	r.wantTimeouts("it holds from the begin of the step on", 2, 2, 1)
	r.pass(30 * time.Second)
	r.reports(next, 5, 5)
	r.wantTimeouts("after the last step", 2, 2, 2)
}
