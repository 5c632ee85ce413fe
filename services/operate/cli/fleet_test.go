package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/xds"
)

func TestParseQuota(t *testing.T) {
	for _, c := range []struct {
		text    string
		streams uint32
		want    uint32
	}{
		{"100%", 7, 7}, {"95%", 20, 19}, {"95%", 21, 20}, {"50%", 0, 1}, {"0.1%", 10, 1}, {"3", 100, 3}, {"0", 100, 0},
	} {
		q, err := parseQuota(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.of(c.streams); got != c.want {
			t.Errorf("%s of %d are %d, want %d", c.text, c.streams, got, c.want)
		}
	}
	for _, text := range []string{"", "x", "x%", "0%", "101%", "-1", "1.5"} {
		if _, err := parseQuota(text); exitCode(err) != 2 {
			t.Errorf("--for %q: %v, want an error of the caller", text, err)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	var w waitView
	if m.must(t, &w, "wait", "latest", "--for", "0"); !w.Reached || w.Version == "" {
		t.Fatalf("wait --for 0 = %+v, want it reached", w)
	}
	for want, args := range map[string][]string{
		"no proxy is connected":     {w.Version},
		"is not published; the log": {"9000000000.1", "--for", "0"},
	} {
		if _, _, err := m.meshlog(t, nil, append([]string{"wait", "--timeout", "800ms"}, args...)...); err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != 1 {
			t.Errorf("wait %v: %v, want %q and exit code 1", args, err, want)
		}
	}

	e := connectEnvoy(t, m.xds)
	e.ask(t, ident.CDS.URL(), nil)
	unanswered, err := e.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := m.meshlog(t, nil, "wait", w.Version, "--timeout", "800ms")
	if err == nil || !strings.Contains(err.Error(), "0 of 1 stream have applied") || !strings.Contains(out, "envoy-1") || !strings.Contains(out, "STALE") {
		t.Errorf("wait: %v, and prints\n%s", err, out)
	}
	ended := make(chan error, 1)
	started := time.Now()
	go func() {
		_, _, err := m.meshlog(t, nil, "wait", w.Version, "--timeout", "30s")
		ended <- err
	}()
	e.ack(t, unanswered)
	if err := <-ended; err != nil {
		t.Errorf("wait until it is acknowledged: %v after %v", err, time.Since(started))
	}
}

// ack accepts a response.
func (e *envoy) ack(t *testing.T, r *discoveryv3.DiscoveryResponse) {
	t.Helper()
	err := e.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()})
	if err != nil {
		t.Fatal(err)
	}
}

// openSources opens the sources of a mesh as a command does.
func (m *mesh) openSources(t *testing.T) *sources {
	t.Helper()
	target := &target{data: m.data, bus: process.DefaultBus()}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	s, err := target.openSources(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := target.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// speak says on the log what a watcher of that source would, which then falls
// silent: that it holds some objects.
func (s *sources) speak(t *testing.T, shard ident.Shard, objects int) {
	t.Helper()
	k, _ := kind.ByName("MeshPolicy")
	payload, err := k.Encode(&configv1.MeshPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	var digests events.ShardDigests
	bodies := []events.Body{&events.Begin{Shard: shard, Session: "old-1", Holder: "old"}}
	for i := range objects {
		o := &events.Object{
			Key: ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: "MeshPolicy", Name: fmt.Sprint("p", i)},
			Op:  events.Put, Value: ident.Value{Type: k.TypeURL, Bytes: payload}, Session: "old-1", Pseq: uint64(i + 1), Low: 1,
		}
		digests.Toggle(o.Key, events.ContentHash(o.Key, o.Value))
		bodies = append(bodies, o)
	}
	bodies = append(bodies, &events.Alive{
		Shard: shard, Session: "old-1", Low: uint64(objects + 1), Digest: digests.Sum(), Listed: events.AllBuckets(),
	})
	for i, body := range bodies {
		e := events.Event{ID: fmt.Sprint("old/", i), Observed: at, Actor: "old", Body: body}
		if _, err := s.log.Append(t.Context(), []events.Event{e}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A source whose watcher is gone stays as it is, until somebody removes it;
// what the guard would hold back of that is let through.
func TestSources(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	old := ident.Shard{Source: "file", Instance: "old"}
	m.openSources(t).speak(t, old, 6)
	m.must(t, nil, "wait", "latest", "--for", "0")

	var views []sourceView
	m.must(t, &views, "sources")
	got := map[string]string{}
	for _, v := range views {
		got[v.shard().String()] = fmt.Sprintf("%s %s %d frozen=%t synced=%t", v.State, v.Holder, v.Objects, v.Frozen, v.Synced)
		if v.speaks() && (v.Listed == nil || v.Heard == nil) {
			t.Errorf("%s: does not say when it was listed and heard: %+v", v.shard(), v)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"file/default": "following up 1 frozen=false synced=true", "up/default": "following up 1 frozen=false synced=true",
		"file/old": "silent old 6 frozen=true synced=true",
	}, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		name, want string
		code       int
	}{
		{"file/default", "watcher up speaks for it", 1},
		{"file/old", "old spoke for it just now", 1},
		{"file/none", "nobody has ever spoken for it", 3},
		{"file", "want SOURCE/INSTANCE", 2},
	} {
		_, _, err := m.meshlog(t, nil, "sources", "remove", c.name, "--yes")
		if err == nil || !strings.Contains(err.Error(), c.want) && c.name != "file/old" || exitCode(err) != c.code {
			t.Errorf("sources remove %s: %v, want %q and exit code %d", c.name, err, c.want, c.code)
		}
	}

	r := &removal{sources: m.openSources(t), shard: old}
	if err := r.check(t.Context(), time.Now().Add(removedAfter)); err != nil {
		t.Fatal(err)
	}
	if len(r.view.Objects) != 6 || r.view.Removed {
		t.Errorf("what would go: %+v", r.view)
	}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !r.view.Removed || len(r.view.Approved) != 1 {
		t.Errorf("after the removal: %+v, want a hold that was approved", r.view)
	}
	views = nil
	m.must(t, &views, "sources")
	if len(views) != 2 {
		t.Errorf("sources after the removal: %+v", views)
	}
	var holds []holdView
	if m.must(t, &holds, "approve"); len(holds) != 0 {
		t.Errorf("the guard still holds %+v", holds)
	}
	m.must(t, &views, "sources", "--all")
	if len(views) != 3 || views[1].State != stateGone {
		t.Errorf("sources --all after the removal: %+v", views)
	}
}

func TestPrintSources(t *testing.T) {
	views := []sourceView{
		{Source: "file", Instance: "default", State: "following", Holder: "watcher-1", Session: "ABCDEF-1", Objects: 12, Synced: true, Required: true,
			FrozenKinds: []frozenKindView{{"EnvoyFilter", 3}, {"Sidecar", 12}},
			Standbys:    []string{"watcher-2"}, Listed: when(at.Add(-time.Hour)), Changed: when(at), Heard: when(at.Add(50 * time.Second))},
		{Source: "file", Instance: "old", State: stateSilent, Frozen: true, FrozenSince: when(at.Add(-3 * time.Hour)), Holder: "watcher-3", Objects: 1, Synced: true, Heard: when(at.Add(-3 * time.Hour))},
		{Source: "kube", Instance: "c1", State: stateDown, Frozen: true, FrozenSince: when(at), Holder: "watcher-4", Objects: 1200, Pending: 3, Required: true,
			Problems: viewDiagnostics([]*snapshotv1.Diagnostic{{Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: "source-down", Reason: "connection refused"}})},
		{Source: "nacos", Instance: "a", State: stateGone, Heard: when(at)},
	}
	golden(t, "sources", func(o *output) error {
		return o.print(views, func() error { return showSources(views, at.Add(time.Minute), o) })
	})
	var v sourceView
	v.hear(&reportv1.WatcherReport{State: "standby", Holder: "w2"})
	v.hear(&reportv1.WatcherReport{State: "listing", Holder: "w1", Keys: 3, Partial: true, Listed: stamp(0)})
	if diff := cmp.Diff(sourceView{State: "listing", Holder: "w1", Standbys: []string{"w2"}, Objects: 3, Partial: true, Listed: when(at), Problems: []diagnosticView{}}, v); diff != "" {
		t.Error(diff)
	}
	remove := removeView{Source: "file", Instance: "old", Objects: []string{"Resource a/b (file/old)", "Resource a/c (file/old)"}}
	golden(t, "sources-remove", func(o *output) error { return o.print(remove, func() error { return showRemoval(remove, o) }) })
	remove.Kinds, remove.Unserved = []string{"Resource", "Sidecar"}, 1
	golden(t, "sources-remove-kinds", func(o *output) error { return o.print(remove, func() error { return showRemoval(remove, o) }) })
	remove.Removed, remove.Version, remove.Held = true, "1.7", []string{"hold-1-1.7-file-old"}
	golden(t, "sources-removed-kinds", func(o *output) error { return o.print(remove, func() error { return showRemoval(remove, o) }) })
}

func TestProxyConfig(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop") + cluster("cart")})
	e := connectEnvoy(t, m.xds)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.EDS.URL(), []string{"nobody"})
	if _, err := e.stream.Recv(); err != nil {
		t.Fatal(err)
	}
	states := func(args ...string) map[string]string {
		var views []configView
		m.must(t, &views, append([]string{"proxy-config", "envoy-1"}, args...)...)
		got := map[string]string{}
		for _, v := range views {
			for _, c := range v.Types {
				for _, r := range c.Resources {
					got[c.Type+" "+r.Name] = r.State
					if (r.Config == nil) != (r.State == stateAbsent || r.Name == "nobody") {
						t.Errorf("%s %s: config %s", c.Type, r.Name, r.Config)
					}
				}
			}
		}
		return got
	}
	want := map[string]string{"CDS cart": "ACKED", "CDS shop": "ACKED", "EDS nobody": "SENT"}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"CDS cart": "ACKED"}, states("clusters", "car")); diff != "" {
		t.Error(diff)
	}

	// It is to have another cluster, and rejects it.
	writeConfig(t, m.config, map[string]string{"new.yaml": cluster("new")})
	e.answer(t, "Error adding/updating cluster(s) new: it is bad")
	e.answer(t, "") // without it
	e.ask(t, ident.LDS.URL(), nil)
	e.answer(t, "") // so the last ACK was taken
	want = map[string]string{"CDS cart": "ACKED", "CDS shop": "ACKED", "CDS new": "HELD BACK", "EDS nobody": "SENT"}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
	if out := m.must(t, nil, "proxy-config", "envoy-1"); !strings.Contains(out, "2 ACKED, 1 HELD BACK") || !strings.Contains(out, "CDS HELD BACK: new") {
		t.Errorf("proxy-config prints\n%s", out)
	}

	// What it had, and what a proxy would have that is not there.
	if out := m.must(t, nil, "proxy-config", "envoy-1", "clusters", "--version", "latest~1"); strings.Contains(out, "new") || !strings.Contains(out, "shop") {
		t.Errorf("proxy-config --version latest~1 prints\n%s", out)
	}
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	writeConfig(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: other, cluster: demo}\nadmin: {}\n"})
	for _, args := range [][]string{{}, {"third"}} {
		out := m.must(t, nil, append(append([]string{"proxy-config"}, args...), "cds", "--node", node)...)
		if !strings.Contains(out, append(args, "other")[0]+" would have") || !strings.Contains(out, "new") {
			t.Errorf("proxy-config %v --node prints\n%s", args, out)
		}
	}
	writeConfig(t, m.config, map[string]string{"new.yaml": strings.Replace(cluster("new"), "1s", "2s", 1)})
	e.answer(t, "")
	var diff diffView
	m.must(t, &diff, "diff", "latest~2", "latest", "--proxy", "envoy-1")
	if len(diff.Changes) != 1 || diff.Changes[0].Object != "Cluster new" || diff.Changes[0].Change != "added" || diff.Proxy != "envoy-1" {
		t.Errorf("diff latest~2 latest = %+v, want the cluster that came", diff)
	}
	out := m.must(t, nil, "diff", "latest", "--node", node)
	if !strings.Contains(out, "~ Cluster new") || !strings.Contains(out, `connect_timeout: "1s" -> "2s"`) {
		t.Errorf("diff latest prints\n%s", out)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{nil, "PROXY is missing", 2},
		{[]string{"envoy-1", "x"}, `type "x": want clusters, endpoints, listeners or routes`, 2},
		{[]string{"nobody"}, "is connected to none of: up", 3},
		{[]string{"envoy-1", "cds", "none"}, `has no resource of CDS whose name contains "none"`, 3},
		{[]string{"envoy-1", "rds"}, "has not asked for RDS", 3},
		{[]string{"--node", "/nowhere"}, "--node: open /nowhere", 2},
	} {
		_, _, err := m.meshlog(t, nil, append([]string{"proxy-config"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("proxy-config %v: %v, want %q and exit code %d", c.args, err, c.want, c.code)
		}
	}

	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if out := m.must(t, nil, "proxy-config", "clusters", "--node", node); !strings.Contains(out, "shop") {
		t.Errorf("proxy-config of what was left prints\n%s", out)
	}
	if _, _, err := m.meshlog(t, nil, "proxy-config", "envoy-1"); err == nil || !strings.Contains(err.Error(), "give --node FILE") {
		t.Errorf("proxy-config of what was left without --node: %v", err)
	}
}

func TestStates(t *testing.T) {
	r := xds.Empty(ident.RDS, "r")
	sum := r.Sum[:]
	for name, c := range map[string]struct {
		with typeComparison
		r    *xds.Resource
		h    *reportv1.ResourceContent
		want string
	}{
		"has it":                   {typeComparison{current: true}, r, &reportv1.ResourceContent{Sent: true, Sum: sum, Applied: true}, stateAcked},
		"was sent it":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: sum}, stateSent},
		"has another":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, Applied: true}, stateStale},
		"was never sent it":        {typeComparison{}, r, nil, stateStale},
		"rejected it":              {typeComparison{}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, HeldBack: true}, stateHeldBack},
		"has the one before":       {typeComparison{current: true, quarantined: []string{"r"}}, r, &reportv1.ResourceContent{Name: "r", Sent: true, Sum: sum, Applied: true}, stateQuarantined},
		"is kept from it":          {typeComparison{current: true, quarantined: []string{"r"}}, nil, &reportv1.ResourceContent{Name: "r", Quarantined: true}, stateQuarantined},
		"there is none":            {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Applied: true}, stateAbsent},
		"it lingers":               {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Sum: sum, Lingering: true}, stateLingering},
		"has another without need": {typeComparison{current: true}, r, &reportv1.ResourceContent{Sent: true, Sum: []byte{1}, Applied: true}, stateDiffers},
		"has one too many":         {typeComparison{current: true}, nil, &reportv1.ResourceContent{Sent: true, Sum: sum, Applied: true}, stateDiffers},
		"lacks one":                {typeComparison{current: true}, r, nil, stateDiffers},
	} {
		if got := c.with.state(c.r, c.h); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestDiagnosticFilter(t *testing.T) {
	views := []diagnosticView{
		{Severity: "error", Code: "undecoded", Object: "Resource demo/routes (file/default)", Origin: "routes.yaml:7"},
		{Severity: "warning", Code: "conflict", Object: "Service demo/x (kube/c1)"},
		{Severity: "info", Code: "hint", Object: "Cluster a|b"},
		{Severity: "error", Code: "source-down", shard: "kube/c2"},
	}
	for _, c := range []struct {
		filter diagnosticFilter
		want   string
	}{
		{diagnosticFilter{}, "undecoded conflict hint source-down"},
		{diagnosticFilter{severity: "warning"}, "undecoded conflict source-down"},
		{diagnosticFilter{shards: []string{"kube"}}, "conflict source-down"},
		{diagnosticFilter{shards: []string{"kube/c2", "file/default"}}, "undecoded source-down"},
		{diagnosticFilter{codes: []string{"hint", "conflict"}}, "conflict hint"},
		{diagnosticFilter{objects: []string{"demo/"}}, "undecoded conflict"},
		{diagnosticFilter{objects: []string{"routes.yaml"}, severity: "error"}, "undecoded"},
	} {
		var got []string
		for _, v := range views {
			if c.filter.is(&v) {
				got = append(got, v.Code)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: %s, want %s", c.filter, s, c.want)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	e := connectEnvoy(t, m.xds)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.LDS.URL(), nil)
	e.answer(t, "") // so the last ACK was taken
	var v statusView
	m.must(t, &v, "status")
	if v.Leader != "up" || v.Head == "" || v.Sources != 2 || v.Frontends != 1 || v.Streams != 1 || len(v.Wrong) != 0 {
		t.Errorf("status = %+v", v)
	}
	if out := m.must(t, nil, "status"); !strings.Contains(out, "All is well.") || !strings.Contains(out, "up leads") {
		t.Errorf("status prints\n%s", out)
	}
	stream := m.follow(t)
	writeConfig(t, m.config, map[string]string{"broken.yaml": broken})
	for seen := (recordView{}); seen.Object == nil || seen.Object.Key.Name != "broken"; {
		seen = recordView{}
		if err := stream.Decode(&seen); err != nil {
			t.Fatal(err)
		}
	}
	m.must(t, nil, "wait", "latest", "--for", "0")
	out, _, err := m.meshlog(t, nil, "status")
	if err == nil || exitCode(err) != 1 || !strings.Contains(out, "1 error in what came in; `meshlog diagnostics` shows them") {
		t.Errorf("status with a broken file: %v, and prints\n%s", err, out)
	}
}

func TestPrintStatus(t *testing.T) {
	v := func(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }
	applied := func(seq uint64, n uint32) *reportv1.Applied {
		return &reportv1.Applied{Version: v(seq), Streams: n}
	}
	r := &bus.Reports{
		Builders: []*reportv1.BuilderReport{
			{Builder: "b2"},
			{Builder: "b1", Leader: true, Head: v(42), Holds: []*reportv1.Hold{{}}, Quarantines: []*reportv1.Quarantine{{}, {}}},
		},
		Frontends: []*reportv1.FrontendReport{
			{Frontend: "f1", Serving: v(42), Streams: 12, Persisted: true, Applied: []*reportv1.Applied{applied(42, 10), applied(41, 1), applied(0, 1)}},
			{Frontend: "f2", Serving: v(40), Streams: 3, Persisted: true, Applied: []*reportv1.Applied{applied(40, 3)}},
			{Frontend: "f3", Serving: v(42)},
		},
	}
	s := &statusView{Bus: "nats://127.0.0.1:4222", Published: when(at), Errors: 1, Wrong: []string{}}
	s.builders(r)
	s.sources([]sourceView{
		{Source: "file", Instance: "default", State: "following"},
		{Source: "file", Instance: "gone", State: stateGone},
		{Source: "file", Instance: "old", State: stateSilent, Frozen: true, FrozenSince: when(at.Add(-3 * time.Hour))},
		{Source: "kubernetes", Instance: "c1", State: "following", Listed: when(at.Add(-time.Hour)), FrozenKinds: []frozenKindView{{"EnvoyFilter", 3}, {"Sidecar", 12}}},
		{Source: "kubernetes", Instance: "c2", State: stateDown, Frozen: true, FrozenKinds: []frozenKindView{{"Sidecar", 1}}},
	}, at.Add(time.Minute))
	s.frontends(r, false)
	golden(t, "status", func(o *output) error {
		return o.print(s, func() error { return showStatus(s, at.Add(time.Minute), o) })
	})
}
