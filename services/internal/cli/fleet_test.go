package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"meshlog.dev/events"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/process"
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
	e.ask(t, model.CDS.URL(), nil)
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
func (s *sources) speak(t *testing.T, shard events.Shard, objects int) {
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
			Key: events.Key{Source: shard.Source, Instance: shard.Instance, Kind: "MeshPolicy", Name: fmt.Sprint("p", i)},
			Op:  events.Put, Payload: events.Payload{Type: k.TypeURL, Bytes: payload}, Session: "old-1", Pseq: uint64(i + 1), Low: 1,
		}
		digests.Toggle(o.Key, events.ContentHash(o.Key, o.Payload, o.Created))
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
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	old := events.Shard{Source: "file", Instance: "old"}
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
			Standbys: []string{"watcher-2"}, Listed: when(at.Add(-time.Hour)), Changed: when(at), Heard: when(at.Add(50 * time.Second))},
		{Source: "file", Instance: "old", State: stateSilent, Frozen: true, Holder: "watcher-3", Objects: 1, Synced: true, Heard: when(at.Add(-3 * time.Hour))},
		{Source: "kube", Instance: "c1", State: "down", Frozen: true, Holder: "watcher-4", Objects: 1200, Pending: 3, Required: true,
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
}
