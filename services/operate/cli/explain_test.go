package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/operate/operatetest"
)

// subsets is a DestinationRule whose subset v2 no endpoint has.
const subsets = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: demo}
spec:
  host: shop.internal
  trafficPolicy: {connectionPool: {tcp: {connectTimeout: 2s}}}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`

// late is refused: it has an unknown field.
const late = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: late, namespace: demo}
spec:
  hosts: [shop.internal]
  http: [{route: [{destination: {host: shop.internal, subsett: v1}}]}]
`

// The answers of why and why-not name the record, the file and line and the actor (WHY-6). They
// are the same for a running mesh, a stopped one and an archive (WHY-7).
func TestExplain(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": shopService, "rule.yaml": subsets, "routes.yaml": route(90, 10), "late.yaml": late})
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: sidecar~10.0.0.9~app.demo~demo.svc.cluster.local, cluster: app}\n"})
	questions := []struct {
		args []string
		code int
		want []string
	}{
		{
			[]string{"why", "cluster/outbound|80|v1|shop.internal", "connect_timeout"}, 0,
			[]string{
				`connect_timeout  "2s"   DestinationRule demo/shop (file/default) spec.trafficPolicy.connectionPool.tcp.connectTimeout`,
				"rule.yaml:1",
			},
		},
		{[]string{"why", "clusters/outbound|80||shop.internal", "-o", "json"}, 0, []string{`"origin": "shop.yaml:1"`, `"whole": true`}},
		{
			[]string{"why", "route/80", "virtual_hosts[shop.internal:80].routes[0].route.weighted_clusters.clusters[1].weight"}, 0,
			[]string{
				"10     VirtualService demo/shop (file/default) spec.http[0].route[1].weight", "routes.yaml:1",
			},
		},
		{[]string{"why", "cluster/nothing"}, 3, []string{`has no Cluster "nothing"`, "proxy-config"}},
		{[]string{"why", "cluster/outbound|80||shop.internal", "nothing"}, 3, []string{"no such field", "connect_timeout"}},
		{[]string{"why", "outbound|80||shop.internal"}, 2, []string{"RESOURCE is missing: cluster/NAME"}},
		{[]string{"why-not", "shop.internal:80", "/"}, 1, []string{
			"10% outbound|80|v2|shop.internal -> no endpoints: 503",
			"The cluster outbound|80|v2|shop.internal has no endpoints: 503.",
			"It would pass without one of these:", "spec.subsets[1].labels.version: \"v2\"", "rule.yaml:1",
			"A newer value is refused:", `unknown field "subsett"`,
		}},
		{[]string{"why-not", "http://nowhere.internal/", "-o", "json"}, 1, []string{`"end": "no such host"`}},
		{[]string{"why-not", "shop.internal", "-H", "x"}, 2, []string{"want NAME=VALUE"}},
	}
	ask := func(where ...string) (answers []string) {
		for _, q := range questions {
			args := append(append([]string{}, q.args...), "--node", node)
			out, _, err := meshlogAt(t, append(args, where...)...)
			if err != nil {
				out += "error: " + err.Error()
			}
			if exitCode(err) != q.code {
				t.Errorf("%v %v: %v, want exit code %d", q.args, where, err, q.code)
			}
			for _, want := range q.want {
				if !strings.Contains(out, want) {
					t.Errorf("%v %v: want %q in\n%s", q.args, where, want, out)
				}
			}
			answers = append(answers, out)
		}
		return answers
	}
	live := ask("--data", m.Data)
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(live, ask("--data", m.Data)); diff != "" {
		t.Errorf("the stopped mesh (-live +stopped):\n%s", diff)
	}
	file := filepath.Join(t.TempDir(), "mesh.archive")
	if _, _, err := meshlogAt(t, "export", file, "--data", m.Data); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(live, ask("--archive", file)); diff != "" {
		t.Errorf("the archive (-live +archive):\n%s", diff)
	}
}

// A field that an overlay serves names the overlay, with its author and reason, beside the
// object: a rollback, and what the guard holds back (WHY-6).
func TestExplainOverlays(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 20 {
		many.WriteString("---\n" + strings.ReplaceAll(strings.ReplaceAll(shopService, "name: shop,", fmt.Sprintf("name: s%d,", i)), "shop.internal", fmt.Sprintf("s%d.internal", i)))
	}
	m := start(t, map[string]string{"shop.yaml": shopService, "rule.yaml": subsets, "routes.yaml": route(90, 10), "many.yaml": many.String()})
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: sidecar~10.0.0.9~app.demo~demo.svc.cluster.local, cluster: app}\n"})
	why := func(args ...string) string {
		t.Helper()
		out, _, err := meshlogAt(t, append(append([]string{"why"}, args...), "--node", node, "--data", m.Data)...)
		if err != nil {
			t.Fatalf("why %v: %v", args, err)
		}
		return out
	}
	const weight = "virtual_hosts[shop.internal:80].routes[0].route.weighted_clusters.clusters[1].weight"
	var before []versionView
	m.must(t, &before, "versions")
	operatetest.WriteFiles(t, m.Config, map[string]string{"routes.yaml": route(50, 50)})
	m.Events.Wait(t, "serving", "version")
	if out := why("route/80", weight); !strings.Contains(out, "VirtualService demo/shop") || strings.Contains(out, "served by") {
		t.Errorf("before the rollback:\n%s", out)
	}
	m.must(t, nil, "rollback", before[0].Version, "VirtualService/demo/shop", "--reason", "wrong weights")
	m.Events.Wait(t, "serving", "version")
	out := why("route/80", weight)
	for _, want := range []string{"10 +VirtualService demo/shop", `served by the rollback \S+ of \S+: wrong weights`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("after the rollback: want %q in\n%s", want, out)
		}
	}

	reports := m.builderReports(t)
	if err := os.Remove(filepath.Join(m.Config, "many.yaml")); err != nil {
		t.Fatal(err)
	}
	var id string
	for id == "" {
		if holds := (<-reports).GetHolds(); len(holds) > 0 {
			id = holds[0].GetId()
		}
	}
	m.Events.Wait(t, "serving", "version")
	if out := why("cluster/outbound|80||s7.internal", "type"); !strings.Contains(out, "ServiceEntry demo/s7") || !strings.Contains(out, "served by the hold "+id) {
		t.Errorf("what is held back by %s:\n%s", id, out)
	}
}
