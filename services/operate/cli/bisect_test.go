package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/operatetest"
)

// toSubset returns the VirtualService of the shop with one destination.
func toSubset(subset string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http: [{route: [{destination: {host: shop.internal, subset: %s}}]}]
`, subset)
}

// bisected is what `bisect -o json` prints.
type bisected struct {
	Found           string
	Version, Before string
	Skipped         []string
	Unknown         string
	Tests           []struct{ Verdict, Says string }
	Records         []struct {
		Seq, First    uint64
		What          string
		Object        string
		Origin, Actor string
		Changes       []struct {
			Object, Change string
			Fields         []struct{ Path string }
		}
	}
	XDS        []struct{ Object string }
	CallBefore []string
	CallAfter  []string
}

// quarrel returns a mesh of 14 versions: the shop works up to .bad, not until .fixed, and works
// then. Others change meanwhile.
func quarrel(t *testing.T) (m *mesh, v struct{ first, bad, middle, fixed, last string }) {
	t.Helper()
	m = start(t, map[string]string{"shop.yaml": shopService, "rule.yaml": subsets, "routes.yaml": toSubset("v1"), "noise.yaml": cluster("n0")})
	v.first = versionOf(t, m, "latest")
	for i := 1; i < 14; i++ {
		change, at := map[string]string{"noise.yaml": cluster(fmt.Sprintf("n%d", i))}, new(string)
		switch i {
		case 5:
			change, at = map[string]string{"routes.yaml": toSubset("v2")}, &v.bad
		case 7:
			at = &v.middle
		case 10:
			change, at = map[string]string{"routes.yaml": toSubset("v1")}, &v.fixed
		}
		operatetest.WriteFiles(t, m.Config, change)
		m.Events.Wait(t, "serving", "version")
		*at = versionOf(t, m, "latest")
	}
	v.last = versionOf(t, m, "latest")
	return m, v
}

const expect = "outbound|80|v1|shop.internal"

// bisect finds the version and the record that make the difference, with a simulated call and
// with a command, on a running mesh, a stopped one and an archive (BIS-1, BIS-3, BIS-4).
func TestBisect(t *testing.T) {
	t.Parallel()
	m, v := quarrel(t)
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{"envoy.yaml": "node: {id: sidecar~10.0.0.9~app.demo~demo.svc.cluster.local, cluster: app}\n"})
	grep := []string{"--", "sh", "-c", `test -n "$XDS_VERSION" && grep -q 'v1|shop' "$XDS_DIR/routes.json"`}
	call := []string{"--call", "http://shop.internal/", "--expect", expect}
	ask := func(where ...string) (answers []string) {
		for _, q := range []struct {
			good, bad, found, version string
			test                      []string
		}{
			{v.first, v.middle, "bad", v.bad, call},
			{v.first, v.middle, "bad", v.bad, grep},
			{v.last, v.middle, "good", v.fixed, call}, // the change that mended it
		} {
			args := append(append([]string{"bisect", "--good", q.good, "--bad", q.bad, "--node", node, "-o", "json"}, where...), q.test...)
			out, stderr, err := meshlogAt(t, args...)
			if err != nil {
				t.Fatalf("%v: %v\n%s", args, err, stderr)
			}
			var b bisected
			if err := json.Unmarshal([]byte(out), &b); err != nil {
				t.Fatal(err)
			}
			if b.Found != q.found || b.Version != q.version || len(b.Tests) > 6 || len(b.Records) != 1 {
				t.Fatalf("%v:\n%s\n%s\nwant the first %s version %s, and one record", args, out, stderr, q.found, q.version)
			}
			r := b.Records[0]
			if r.What != "put" || r.Object != "VirtualService demo/shop (file/default)" || r.Origin != "routes.yaml:1" || r.Actor != "file" ||
				len(r.Changes) != 1 || r.Changes[0].Fields[0].Path != "spec.http[0].route[0].destination.subset" {
				t.Errorf("%v: record %+v", args, r)
			}
			if len(b.XDS) == 0 || !strings.Contains(out, "RouteConfiguration 80") || (q.test[0] == "--call") != (len(b.CallAfter) > 0) {
				t.Errorf("%v: the effect is missing:\n%s", args, out)
			}
			answers = append(answers, out)
		}
		return answers
	}
	live := ask("--data", m.Data)
	m.bisectByName(t, v.first, v.last)
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
	where := []string{"--archive", file, "--node", node}
	bisectText(t, append(where, "--good", v.first, "--bad", v.middle))
	bisectSkips(t, where, v.first, v.bad, v.middle)
	bisectRefuses(t, where, v.first, v.middle, v.last)
}

// bisectByName searches with a proxy that is connected, by its name.
func (m *mesh) bisectByName(t *testing.T, first, last string) {
	t.Helper()
	e := connectEnvoy(t, m.XDS)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.LDS.URL(), nil) // the frontend answers this after it has read the ACK
	e.answer(t, "")
	out, stderr, err := meshlogAt(t, "bisect", "--data", m.Data, "--good", last, "--bad", first, "-o", "json", "envoy-1", "--", "sh", "-c", `grep -q '"n13"' "$XDS_DIR/clusters.json"`)
	var b bisected
	if err == nil {
		err = json.Unmarshal([]byte(out), &b)
	}
	if err != nil || b.Version != last || b.Found != "good" || len(b.Records) != 1 || len(b.Records[0].Changes) != 2 {
		t.Errorf("a proxy by its name: %v\n%s%s", err, stderr, out)
	}
}

// bisectText checks what people read.
func bisectText(t *testing.T, where []string) {
	t.Helper()
	out, stderr, err := meshlogAt(t, append(append([]string{"bisect"}, where...), "--call", "http://shop.internal/", "--expect", expect)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"is the first bad version;", "PUT VirtualService demo/shop (file/default)  routes.yaml:1  by file",
		`spec.http[0].route[0].destination.subset: "v1" -> "v2"`, "The call before:", "no endpoints: 503", "~ RouteConfiguration 80",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("bisect prints\n%swithout %q", out, want)
		}
	}
	for _, want := range []string{"6 versions between", "about 5 tests", "is bad: outbound|80|v2|shop.internal"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("bisect says\n%swithout %q", stderr, want)
		}
	}
}

// bisectSkips searches past versions that cannot be tested (BIS-2).
func bisectSkips(t *testing.T, where []string, first, bad, middle string) {
	t.Helper()
	search := func(script string) (b bisected) {
		t.Helper()
		args := append(append([]string{"bisect", "--good", first, "--bad", middle, "-o", "json"}, where...), "--", "sh", "-c", script)
		out, stderr, err := meshlogAt(t, args...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &b)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr)
		}
		return b
	}
	// A version far from the change is skipped: the answer is exact.
	if b := search(`grep -q '"n2"' "$XDS_DIR/clusters.json" && exit 125; grep -q 'v1|shop' "$XDS_DIR/routes.json"`); b.Version != bad || len(b.Skipped) != 0 || len(b.Records) != 1 {
		t.Errorf("with a skipped version: %+v, want %s", b, bad)
	}
	// The version with the change, and its record, are skipped: one of two it is.
	b := search(`test "$XDS_VERSION" = ` + bad + ` && exit 125; grep -q 'v1|shop' "$XDS_DIR/routes.json"`)
	if len(b.Skipped) != 1 || b.Skipped[0] != bad || len(b.Records) != 2 || b.Records[0].Object != "VirtualService demo/shop (file/default)" {
		t.Errorf("with the change skipped: %+v, want %s and the one after it", b, bad)
	}
}

// bisectRefuses searches for what cannot be found.
func bisectRefuses(t *testing.T, where []string, first, middle, last string) {
	t.Helper()
	call := []string{"--call", "http://shop.internal/", "--expect", expect}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{append([]string{"--good", middle, "--bad", first}, call...), "exchange --good and --bad", 1},
		{append([]string{"--good", first, "--bad", last}, call...), "are both good", 1},
		{[]string{"--good", first, "--bad", last, "--call", "http://shop.internal/", "--expect", "x"}, "are both bad", 1},
		{[]string{"--good", first, "--bad", last, "--", "sh", "-c", "exit 125"}, "cannot be tested", 1},
		{[]string{"--good", first, "--bad", last, "--", "sh", "-c", "exit 130"}, "sh exits with 130", 1},
		{[]string{"--good", first, "--bad", last, "--", "sh", "-c", "kill -9 $$"}, "signal: killed", 1},
		{[]string{"--good", first, "--bad", last, "--", "/nowhere"}, "run /nowhere", 1},
		{append([]string{"--good", first, "--bad", first}, call...), "are the same version", 2},
		{append([]string{"--bad", first}, call...), "--good and --bad: give both", 2},
		{[]string{"--good", first, "--bad", last}, "what is the test?", 2},
		{[]string{"--good", first, "--bad", last, "--call", "http://shop.internal/"}, "--expect is missing", 2},
		{append(append([]string{"--good", first, "--bad", last}, call...), "--", "true"), "--call and -- CMD: give one", 2},
		{append([]string{"--good", "9999", "--bad", last}, call...), "version 9999: never published", 3},
		{[]string{"--good", first, "--bad", last, "--call", "shop.internal", "--expect", "x"}, "want http://HOST", 2},
	} {
		args := append(append([]string{"bisect"}, where...), c.args...)
		_, _, err := meshlogAt(t, args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%v: %v, want %q with exit code %d", args, err, c.want, c.code)
		}
	}
}

// The records of a batch are one step (BIS-5).
func TestBisectBatch(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": shopService, "rule.yaml": subsets})
	node := filepath.Join(t.TempDir(), "envoy.yaml")
	operatetest.WriteFiles(t, filepath.Dir(node), map[string]string{
		"envoy.yaml": "node: {id: sidecar~10.0.0.9~app.demo~demo.svc.cluster.local, cluster: app}\n",
		"batch.yaml": cluster("one") + toSubset("v2") + "---\n" + cluster("two"),
	})
	search := func() (b bisected) {
		t.Helper()
		m.Events.Wait(t, "serving", "version")
		out := m.must(t, nil, "bisect", "--good", "latest~1", "--bad", "latest", "--node", node, "-o", "json", "--call", "http://shop.internal/", "--expect", "outbound|80||shop.internal")
		if err := json.Unmarshal([]byte(out), &b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	m.must(t, nil, "apply", "-f", filepath.Join(filepath.Dir(node), "batch.yaml"))
	if b := search(); len(b.Records) != 1 || b.Records[0].What != "alive" || b.Records[0].First != b.Records[0].Seq-3 || len(b.Records[0].Changes) != 3 {
		t.Errorf("a listing: %+v, want one step of four records", b.Records)
	}
	m.must(t, nil, "delete", "VirtualService", "shop", "-n", "demo")
	m.Events.Wait(t, "serving", "version")
	operatetest.WriteFiles(t, m.Config, map[string]string{"batch.yaml": cluster("three") + toSubset("v2") + "---\n" + cluster("four")})
	if b := search(); len(b.Records) != 1 || b.Records[0].What != "put" || b.Records[0].First != b.Records[0].Seq-2 || len(b.Records[0].Changes) != 3 {
		t.Errorf("a batch: %+v, want one step of three records", b.Records)
	}
}

// An archive of a mesh that runs holds the nodes of the proxies that are connected: the commands
// about the past find them by name, and say which there are.
func TestArchivedNodes(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	e := connectEnvoy(t, m.XDS)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	e.ask(t, ident.LDS.URL(), nil) // the frontend answers this after it has read the ACK
	e.answer(t, "")
	dir := t.TempDir()
	live, stopped, copied := filepath.Join(dir, "live"), filepath.Join(dir, "stopped"), filepath.Join(dir, "copied")
	if out := m.must(t, nil, "export", live); !strings.Contains(out, "; 1 proxy; ") {
		t.Errorf("export prints %q, want a proxy", out)
	}
	if out, _, err := meshlogAt(t, "export", copied, "--archive", live); err != nil || !strings.Contains(out, "; 1 proxy; ") {
		t.Errorf("export of an archive: %v, and prints %q", err, out)
	}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if out := m.must(t, nil, "export", stopped); strings.Contains(out, "proxy") {
		t.Errorf("export of a stopped mesh prints %q", out)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"why", "--archive", live, "envoy-1", "cluster/shop", "connect_timeout"}, "Resource default/shop (file/default)", 0},
		{[]string{"why", "--archive", copied, "envoy-1", "cluster/shop", "connect_timeout"}, "Resource default/shop (file/default)", 0},
		{[]string{"proxy-config", "--archive", live, "envoy-1", "clusters"}, "shop", 0},
		{[]string{"simulate", "--archive", live, "envoy-1", "GET", "http://nowhere.example/"}, "no listener for port 80", 0},
		{[]string{"why-not", "--archive", live, "envoy-1", "nowhere.example"}, "no listener", 1},
		{[]string{"why", "--archive", live, "envoy-2", "cluster/shop"}, "did you mean envoy-1?", 3},
		{[]string{"proxy-config", "--archive", live, "other"}, "it holds envoy-1", 3},
		{[]string{"proxy-config", "--archive", stopped, "envoy-1"}, "holds no nodes of proxies", 3},
		{[]string{"why", "--archive", stopped, "envoy-1", "cluster/shop"}, "give --node FILE", 3},
		{[]string{"verify", "--archive", live}, "All versions hold.", 0},
	} {
		out, _, err := meshlogAt(t, c.args...)
		if err != nil {
			out += err.Error()
		}
		if exitCode(err) != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", c.args, exitCode(err), c.code, c.want, out)
		}
	}
}
