package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/operatetest"
)

func TestWait(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	var w waitView
	if m.must(t, &w, "wait", "latest", "--for", "0"); !w.Reached || w.Version == "" {
		t.Fatalf("wait --for 0 = %+v, want it reached", w)
	}
	for want, args := range map[string][]string{
		"no proxy is connected":                          {w.Version},
		"is not published; the builder has read the log": {"9000000000.1", "--for", "0"},
	} {
		if _, _, err := m.meshlog(t, nil, append([]string{"wait", "--timeout", "800ms"}, args...)...); err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != 1 {
			t.Errorf("wait %v: %v, want %q and exit code 1", args, err, want)
		}
	}

	e := connectEnvoy(t, m.XDS)
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

func TestProxyConfig(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop") + cluster("cart")})
	e := connectEnvoy(t, m.XDS)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.EDS.URL(), []string{"absent"})
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
					if (r.Config == nil) != (r.State == "ABSENT" || r.Name == "absent") {
						t.Errorf("%s %s: config %s", c.Type, r.Name, r.Config)
					}
				}
			}
		}
		return got
	}
	want := map[string]string{"CDS cart": "ACKED", "CDS shop": "ACKED", "EDS absent": "SENT"}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"CDS cart": "ACKED"}, states("clusters", "car")); diff != "" {
		t.Error(diff)
	}

	// Versions are named: what is held back from the only proxy is soon in quarantine, which
	// makes a version of its own, and so does its end.
	latest := func() string {
		var all []struct{ Version string }
		m.must(t, &all, "versions")
		return all[0].Version
	}
	before := latest()

	// The frontend sends the proxy a new cluster, which it rejects.
	operatetest.WriteFiles(t, m.Config, map[string]string{"new.yaml": cluster("new")})
	e.answer(t, "Error adding/updating cluster(s) new: it is bad")
	e.answer(t, "") // the response without the cluster
	e.ask(t, ident.LDS.URL(), nil)
	e.answer(t, "") // so the last ACK was taken
	want = map[string]string{"CDS cart": "ACKED", "CDS shop": "ACKED", "CDS new": "HELD BACK", "EDS absent": "SENT"}
	if diff := cmp.Diff(want, states()); diff != "" {
		t.Error(diff)
	}
	if out := m.must(t, nil, "proxy-config", "envoy-1"); !strings.Contains(out, "2 ACKED, 1 HELD BACK") || !strings.Contains(out, "CDS HELD BACK: new") {
		t.Errorf("proxy-config prints\n%s", out)
	}

	// The proxy's earlier content, and the content of a proxy that is not connected.
	if out := m.must(t, nil, "proxy-config", "envoy-1", "clusters", "--version", before); strings.Contains(out, "new") || !strings.Contains(out, "shop") {
		t.Errorf("proxy-config --version %s prints\n%s", before, out)
	}
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: other, cluster: demo}\nadmin: {}\n"})
	for _, args := range [][]string{{}, {"third"}} {
		out := m.must(t, nil, append(append([]string{"proxy-config"}, args...), "cds", "--node", node)...)
		if !strings.Contains(out, append(args, "other")[0]+" would have") || !strings.Contains(out, "new") {
			t.Errorf("proxy-config %v --node prints\n%s", args, out)
		}
	}
	rejected := latest()
	operatetest.WriteFiles(t, m.Config, map[string]string{"new.yaml": strings.Replace(cluster("new"), "1s", "2s", 1)})
	e.answer(t, "")
	var diff diffView
	m.must(t, &diff, "diff", before, "latest", "--proxy", "envoy-1")
	if len(diff.Changes) != 1 || diff.Changes[0].Object != "Cluster new" || diff.Changes[0].Change != "added" || diff.Proxy != "envoy-1" {
		t.Errorf("diff %s latest = %+v, want the added cluster", before, diff)
	}
	out := m.must(t, nil, "diff", rejected, "latest", "--node", node)
	if !strings.Contains(out, "~ Cluster new") || !strings.Contains(out, `connect_timeout: "1s" -> "2s"`) {
		t.Errorf("diff %s latest prints\n%s", rejected, out)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{nil, "PROXY is missing", 2},
		{[]string{"envoy-1", "x"}, `type "x": want clusters, endpoints, filters, listeners, names, routes or secrets`, 2},
		{[]string{"absent"}, "not connected to any frontend (up)", 3},
		{[]string{"envoy-1", "cds", "none"}, `has no resource of CDS whose name contains "none"`, 3},
		{[]string{"envoy-1", "rds"}, "has not asked for RDS", 3},
		{[]string{"--node", "/nowhere"}, "--node: open /nowhere", 2},
	} {
		_, _, err := m.meshlog(t, nil, append([]string{"proxy-config"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("proxy-config %v: %v, want %q and exit code %d", c.args, err, c.want, c.code)
		}
	}

	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if out := m.must(t, nil, "proxy-config", "clusters", "--node", node); !strings.Contains(out, "shop") {
		t.Errorf("proxy-config of a stopped mesh prints\n%s", out)
	}
	if _, _, err := m.meshlog(t, nil, "proxy-config", "envoy-1"); err == nil || !strings.Contains(err.Error(), "give --node FILE") {
		t.Errorf("proxy-config of a stopped mesh without --node: %v", err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	e := connectEnvoy(t, m.XDS)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.LDS.URL(), nil)
	e.answer(t, "") // so the last ACK was taken
	var v statusView
	m.must(t, &v, "status")
	if v.Leader != "up" || v.Head == "" || v.Sources != 2 || v.Frontends != 1 || v.Streams != 1 || len(v.Wrong) != 0 {
		t.Errorf("status = %+v", v)
	}
	if out := m.must(t, nil, "status"); !strings.Contains(out, "Nothing needs attention.") || !strings.Contains(out, "up leads") {
		t.Errorf("status prints\n%s", out)
	}
	stream := m.follow(t)
	operatetest.WriteFiles(t, m.Config, map[string]string{"broken.yaml": broken})
	for seen := (recordView{}); seen.Object == nil || seen.Object.Key.Name != "broken"; {
		seen = recordView{}
		if err := stream.Decode(&seen); err != nil {
			t.Fatal(err)
		}
	}
	m.must(t, nil, "wait", "latest", "--for", "0")
	out, _, err := m.meshlog(t, nil, "status")
	if err == nil || exitCode(err) != 1 || !strings.Contains(out, "1 error in the configuration; `meshlog diagnostics` shows them") {
		t.Errorf("status with a broken file: %v, and prints\n%s", err, out)
	}
}
