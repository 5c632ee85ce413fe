package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in deploy/observability/README.md")

// exported is a metric, and the programs that export it.
type exported struct {
	rig.Metric
	from map[string]bool
}

// TestObservability demands that the table, the dashboard and the alerts describe
// the metrics that running programs export.
func TestObservability(t *testing.T) {
	cluster := apiServer(t)
	f := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		nats, err := rig.StartNATS(ctx, dir)
		if err != nil {
			return nil, err
		}
		return rig.Assemble(ctx, dir, config, rig.Parts{NATS: nats, Builders: 2, Frontends: 1, Kube: []rig.KubeCluster{cluster}})
	})
	console := f.console()
	f.shift(50, 50)
	all := f.exports()
	f.stagesCounted(all)
	serves, edge := f.signed()
	f.overTLS(f.mesh.Frontends[0], serves)
	maps.Copy(all, f.exports())
	f.ofConsole(console, all)
	f.table(all)
	f.answerable(f.withOthers(all), f.dashboard())
	f.answerable(all, f.alerts())
	f.onDashboard(all)

	// One process exports all metrics of the separate ones.
	up := startWith(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		return rig.UpWith(ctx, dir, &serves, "--config", config, "--cluster", cluster.Name, "--kubeconfig", cluster.Kubeconfig)
	}, rig.EnvoyConfig{Node: node, Cluster: "demo", TLS: &edge}).exports()
	for name, m := range all {
		if diff := cmp.Diff(m.Labels, up[name].Labels); diff != "" || up[name].Name == "" {
			t.Errorf("of `meshlog up`, labels of %s (-apart +up):\n%s", name, diff)
		}
	}
	if len(up) != len(all) {
		t.Errorf("`meshlog up` exports %d metrics, the processes apart %d", len(up), len(all))
	}
}

// othersRow is a row of the tables of the metrics of a CA and of registries.
var othersRow = regexp.MustCompile("(?m)^\\| `((?:citadel|meshlog_ca|meshlog_registry|meshlog_mcpxds)_\\w+)(?:\\{([^}]*)\\})?` \\|")

// withOthers adds the metrics of a CA and of registries, which no mesh of this test has. Tests
// of roles/ca, watcher/registry and watcher/mcpxds compare their tables with the code.
func (f *fixture) withOthers(all map[string]exported) map[string]exported {
	f.Helper()
	with := maps.Clone(all)
	for _, m := range othersRow.FindAllStringSubmatch(string(f.observability("README.md")), -1) {
		e := exported{Metric: rig.Metric{Name: m[1]}}
		if m[2] != "" {
			e.Labels = strings.Split(m[2], ", ")
		}
		if strings.HasPrefix(m[1], "meshlog_registry_") || strings.HasPrefix(m[1], "meshlog_mcpxds_") {
			e.Labels = append(e.Labels, "source")
		}
		with[m[1]] = e
	}
	return with
}

// apiServer starts the API server of a cluster without a node, for a watcher.
func apiServer(t *testing.T) rig.KubeCluster {
	t.Helper()
	access, err := kubetest.Kubeconfig(kubetest.Start(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	c := rig.KubeCluster{Name: "watcher", Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), Watchers: 1} // so that the table has a watcher's metrics
	if err := os.WriteFile(c.Kubeconfig, access, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// signed creates certificates for an xDS server and for an Envoy.
func (f *fixture) signed() (server, client rig.TLS) {
	f.Helper()
	ca, err := rig.NewCA(f.TempDir(), "mesh")
	f.must(err)
	server, err = ca.Sign("frontend", "")
	f.must(err)
	client, err = ca.Sign("edge", "spiffe://cluster.local/ns/default/sa/edge")
	f.must(err)
	return server, client
}

// overTLS makes a frontend serve over TLS too.
func (f *fixture) overTLS(s *rig.Server, files rig.TLS) {
	f.Helper()
	f.must(s.Stop())
	f.must(s.RestartWith("MESHLOG_TLS_CERT="+files.Cert, "MESHLOG_TLS_KEY="+files.Key, "MESHLOG_TLS_CLIENT_CA="+files.CA, "MESHLOG_TLS_LISTEN=127.0.0.1:0"))
	f.must(s.Ready(f.ctx))
}

// onDashboard demands that the dashboard shows each of our metrics.
func (f *fixture) onDashboard(all map[string]exported) {
	f.Helper()
	dashboard := string(f.observability("dashboard.json"))
	for name := range all {
		if ours(name) && !regexp.MustCompile(`\b`+name+`(_bucket|_sum|_count)?\b`).MatchString(dashboard) {
			f.Errorf("the dashboard does not show %s", name)
		}
	}
}

// ours reports whether a metric is ours, and not the Go runtime's.
func ours(name string) bool {
	return strings.HasPrefix(name, "meshlog_") || strings.HasPrefix(name, "pilot_")
}

// exports reads the metrics of all programs.
func (f *fixture) exports() map[string]exported {
	f.Helper()
	all := map[string]exported{}
	for _, s := range f.mesh.Servers() {
		program, _, _ := strings.Cut(s.Name, "-")
		metrics, err := s.Metrics(f.ctx)
		f.must(err)
		for name, m := range metrics {
			e, ok := all[name]
			if !ok {
				e = exported{Metric: m, from: map[string]bool{}}
			}
			e.from[program] = true
			all[name] = e
		}
	}
	return all
}

// ofConsole adds the metrics that only a console has.
func (f *fixture) ofConsole(c *consoleOf, all map[string]exported) {
	f.Helper()
	f.must(c.Ready(f.ctx))
	metrics, err := c.Metrics(f.ctx)
	f.must(err)
	for name, m := range metrics {
		if strings.HasPrefix(name, "meshlog_console_") {
			all[name] = exported{Metric: m, from: map[string]bool{"console": true}}
		}
	}
}

// stagesCounted demands that some process timed each stage that a change goes
// through.
func (f *fixture) stagesCounted(all map[string]exported) {
	f.Helper()
	for _, name := range []string{
		"meshlog_watcher_listing_seconds", "meshlog_watcher_publish_seconds",
		"meshlog_builder_log_lag_seconds", "pilot_debounce_time", "meshlog_builder_build_seconds", "meshlog_builder_publish_seconds",
		"meshlog_frontend_receive_seconds", "meshlog_frontend_push_seconds", "meshlog_frontend_ack_seconds", "pilot_proxy_convergence_time",
	} {
		if all[name].Type != "histogram" {
			f.Errorf("%s is not exported, or is not a histogram: %+v", name, all[name])
		}
	}
	// Either builder may lead and count, so only the other programs are checked
	// here.
	for _, s := range []*rig.Server{f.mesh.Watcher, f.mesh.Frontends[0]} {
		metrics, err := s.Metrics(f.ctx)
		f.must(err)
		for _, name := range []string{"meshlog_watcher_publish_seconds", "meshlog_frontend_receive_seconds", "meshlog_frontend_push_seconds", "pilot_proxy_convergence_time"} {
			if m, ok := metrics[name]; ok && m.Sum == 0 {
				f.Errorf("%s of %s counted nothing after a change reached Envoy", name, s.Name)
			}
		}
	}
}

// Where the table of metrics begins and ends.
const tableBegin, tableEnd = "<!-- metrics: written by `go test ./deploy/e2e -run TestObservability -update` -->\n", "<!-- end of metrics -->\n"

// table demands that the README's table matches the exported metrics.
func (f *fixture) table(all map[string]exported) {
	f.Helper()
	root, err := program.Root()
	f.must(err)
	path := filepath.Join(root, "deploy", "observability", "README.md")
	readme, err := os.ReadFile(path)
	f.must(err)
	before, rest, ok1 := bytes.Cut(readme, []byte(tableBegin))
	have, after, ok2 := bytes.Cut(rest, []byte(tableEnd))
	if !ok1 || !ok2 {
		f.Fatalf("%s: the marks around the table are missing", path)
	}
	want := tableOf(all)
	if *update {
		f.must(os.WriteFile(path, slices.Concat(before, []byte(tableBegin), []byte(want), []byte(tableEnd), after), 0o600))
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		f.Errorf("%s differs from the exported metrics; run this test with -update (-README +exported):\n%s", path, diff)
	}
}

func tableOf(all map[string]exported) string {
	var b strings.Builder
	b.WriteString("| Metric | From | Type | What it is, and what to do |\n|---|---|---|---|\n")
	for _, name := range slices.SortedFunc(maps.Keys(all), func(x, y string) int {
		return strings.Compare(all[x].roles()+x, all[y].roles()+y)
	}) {
		if !ours(name) {
			continue
		}
		e := all[name]
		labels := ""
		if len(e.Labels) > 0 {
			labels = "{" + strings.Join(e.Labels, ", ") + "}"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", name, labels, e.roles(), e.Type, strings.ReplaceAll(e.Help, "|", `\|`))
	}
	return b.String()
}

// roles returns the roles that export a metric.
func (e exported) roles() string {
	if len(e.from) == 3 {
		return "all"
	}
	return strings.Join(slices.Sorted(maps.Keys(e.from)), ", ")
}
