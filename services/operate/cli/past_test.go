package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/operatetest"
)

// route returns a VirtualService with the weights of a canary.
func route(v1, v2 int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http:
    - route:
        - destination: {host: shop.internal, subset: v1}
          weight: %d
        - destination: {host: shop.internal, subset: v2}
          weight: %d
`, v1, v2)
}

const shopService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1, labels: {version: v1}}]
`

// incident returns a mesh with three versions: a canary of 10 %, of 50 %, and no
// canary. After that, only heartbeats are on the log.
func incident(t *testing.T) *mesh {
	t.Helper()
	m := start(t, map[string]string{"shop.yaml": shopService, "routes.yaml": route(90, 10)})
	operatetest.WriteFiles(t, m.Config, map[string]string{"routes.yaml": route(50, 50)})
	m.Events.Wait(t, "serving", "version")
	if err := os.Remove(filepath.Join(m.Config, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	m.Events.Wait(t, "serving", "version")
	return m
}

// Commands about the past print the same for a running mesh, a stopped mesh and an
// archive.
func TestPast(t *testing.T) {
	m := incident(t)
	questions := [][]string{
		{"versions"},
		{"versions", "latest~1"},
		{"versions", "--since", "1h ago", "--until", "now"},
		{"log", "--key", "VirtualService/demo/shop"},
		{"log", "--to", "9"},
		{"log", "--op", "put,delete", "--since", "1h ago"},
		{"history", "VirtualService/demo/shop"},
		{"history", "serviceentry/demo/shop", "-o", "json"},
		{"show", "latest~1"},
		{"show", "latest~1", "VirtualService/demo/shop"},
		{"show", "latest~2", "VirtualService/demo/shop", "-o", "json"},
		{"show", "now", "--kind", "ServiceEntry", "-o", "yaml"},
		{"diff", "latest~2", "latest~1"},
		{"diff", "latest", "-o", "json"},
		{"replay", "--to", versionOf(t, m, "latest~1")},
		{"replay", "--from", "1", "--to", versionOf(t, m, "latest"), "--step", "-o", "json"},
	}
	ask := func(where ...string) (answers []string) {
		for _, q := range questions {
			out, _, err := meshlogAt(t, append(append([]string{}, q...), where...)...)
			if err != nil {
				t.Fatalf("%s %s: %v", strings.Join(q, " "), strings.Join(where, " "), err)
			}
			answers = append(answers, strings.Join(q, " ")+"\n"+out)
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
	stdout, stderr, err := meshlogAt(t, "export", file, "--data", m.Data)
	if err != nil || !strings.Contains(stdout, "3 versions") || !strings.Contains(stderr, "Nothing runs on "+m.Data) {
		t.Fatalf("export: %v; it prints %q and %q", err, stdout, stderr)
	}
	if diff := cmp.Diff(live, ask("--archive", file)); diff != "" {
		t.Errorf("the archive (-live +archive):\n%s", diff)
	}
	for i, want := range []string{
		3: "DELETE", 6: "spec.http[0].route[0].weight: 90 -> 50", 9: "weight: 50", 12: "spec.http[0].route[1].weight: 10 -> 50",
		13: `"change": "removed"`, 14: "as published",
	} {
		if !strings.Contains(live[i], want) {
			t.Errorf("%s\ndoes not contain %q", live[i], want)
		}
	}
	for _, where := range [][]string{{"--data", m.Data}, {"--archive", file}} {
		var v verifyView
		out, _, err := meshlogAt(t, append([]string{"verify", "-o", "json"}, where...)...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &v)
		}
		if err != nil || !v.Holds || v.SameOther != 3 || len(v.Findings) != 0 { // the test's `up` is of another build than its commands
			t.Errorf("verify %v: %+v, %v", where, v, err)
		}
	}
	m.versionsOnly(t, live[0])
	m.refuses(t, file)
}

// versionOf resolves a version such as latest~1.
func versionOf(t *testing.T, m *mesh, name string) string {
	t.Helper()
	var v versionView
	m.must(t, &v, "versions", name)
	return v.Version
}

// versionsOnly runs commands on a builder's file, which has no log.
func (m *mesh) versionsOnly(t *testing.T, want string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(process.VersionsFile(dir, "builder")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(process.VersionsFile(m.Data, "builder"), process.VersionsFile(dir, "builder")); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{dir, filepath.Join(dir, "builder")} {
		out, stderr, err := meshlogAt(t, "versions", "--data", data)
		if err != nil || "versions\n"+out != want || !strings.Contains(stderr, "which has versions and no log") {
			t.Errorf("versions of a builder: %v\n%s%s", err, out, stderr)
		}
		if out, _, err := meshlogAt(t, "diff", "latest~2", "latest~1", "--data", data); err != nil || !strings.Contains(out, "90 -> 50") {
			t.Errorf("diff of a builder: %v\n%s", err, out)
		}
		for _, args := range [][]string{{"log"}, {"verify"}, {"replay"}, {"history", "VirtualService/demo/shop"}, {"export", filepath.Join(dir, "x")}} {
			_, _, err := meshlogAt(t, append(args, "--data", data)...)
			if err == nil || !strings.Contains(err.Error(), "holds versions and no log; the log is on the bus (--bus)") || exitCode(err) != 1 {
				t.Errorf("%s of a builder: %v", args[0], err)
			}
		}
	}
}

// refuses runs commands with wrong arguments, and commands about things that do not
// exist.
func (m *mesh) refuses(t *testing.T, file string) {
	t.Helper()
	text := filepath.Join(t.TempDir(), "text")
	operatetest.WriteFiles(t, filepath.Dir(text), map[string]string{"text": "no archive"})
	for _, c := range []struct {
		args string
		want string
		code int
	}{
		{"log", "which mesh?", 2},
		{"log --archive FILE --data x", "--archive and --data or --bus: give one of them", 2},
		{"log --archive " + text, "cannot be read as an archive: `meshlog export` did not write it", 1},
		{"log --archive none", "none: no such file or directory", 1},
		{"log --data none", "--data none: there is no such directory", 3},
		{"log --data " + t.TempDir(), "holds neither a log nor versions", 3},
		{"log --archive FILE --op puts", `--op "puts": want one of put, delete`, 2},
		{"log --archive FILE --since noon", `--since "noon" is no time: want "14:02"`, 2},
		{"log --archive FILE --since 14:00 --from 2", "--from and --since: give one of them", 2},
		{"log --archive FILE --follow", "--follow: FILE gets no new records", 2},
		{"log --archive FILE --key shop", `object "shop": want KIND/NAMESPACE/NAME`, 2},
		{"versions --archive FILE --until soon", `--until "soon" is no time`, 2},
		{"versions --archive FILE 9999", "version 9999: never published, or no longer kept", 3},
		{"show --archive FILE latest~9", "version latest~9: only 3 versions are kept", 3},
		{"show --archive FILE shop", `version "shop": want EPOCH.SEQ, .SEQ, latest, latest~N or a time`, 2},
		{"show --archive FILE 2001-01-01", "is kept; the oldest is", 3},
		{"show --archive FILE latest VirtualService/demo/shop", "object VirtualService/demo/shop: there is none; `meshlog history VirtualService/demo/shop` shows whether it ever existed", 3},
		{"show --archive FILE", "VERSION is missing", 2},
		{"history --archive FILE VirtualService/demo/shpo", "did you mean VirtualService/demo/shop?", 3},
		{"history --archive FILE VirtualService/demo/shop --source kubernetes", "there is none", 3},
		{"history --archive FILE MeshPolicy/demo/default", "a MeshPolicy has no namespace", 2},
		{"diff --archive FILE latest~2", "is the oldest that is kept", 3},
		{"replay --archive FILE --from 5 --to 3", "--from 5 is after --to: record 5 comes after 3", 2},
		{"replay --archive FILE --to x", `--to "x" is no time`, 2},
		{"export --archive FILE " + text, text + ": exists; remove it, or name another file", 1},
		{"export --archive FILE " + text + "2 --since 9999", "position 9999 is not on the log, which ends at", 1},
		{"import FILE", "where to? Give --data DIR", 2},
		{"import FILE --data x --bus y", "one of them", 2},
		{"import FILE --data " + m.Data, m.Data + ": is not empty; name a new directory", 1},
		{"import " + text + " --data " + text + "2", "cannot be read as an archive", 1},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "FILE", file))
		_, _, err := meshlogAt(t, args...)
		if want := strings.ReplaceAll(c.want, "FILE", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("meshlog %s: %v, want %q", c.args, err, want)
		}
		if got := exitCode(err); got != c.code {
			t.Errorf("meshlog %s: exit code %d, want %d", c.args, got, c.code)
		}
	}
	for _, left := range []string{text + "2"} {
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left behind: %v", left, err)
		}
	}
}

// A data directory made from an archive serves the archived world at once, until the
// sources publish their objects.
func TestImport(t *testing.T) {
	m := incident(t)
	file := filepath.Join(t.TempDir(), "mesh.archive")
	if _, _, err := meshlogAt(t, "export", file, "--data", m.Data); err != nil { // of a running mesh
		t.Fatal(err)
	}
	// The running mesh may publish another version meanwhile.
	out, _, err := meshlogAt(t, "versions", "latest", "--archive", file, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var newest versionView
	if err := json.Unmarshal([]byte(out), &newest); err != nil {
		t.Fatal(err)
	}
	last := newest.Version
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	again := &mesh{&operatetest.Mesh{Config: m.Config, Data: filepath.Join(t.TempDir(), "new", "data")}}
	out, _, err = meshlogAt(t, "import", file, "--data", again.Data)
	if err != nil || !strings.Contains(out, "its last version is "+last) || !strings.Contains(out, "meshlog up --config DIR --data "+again.Data) {
		t.Fatalf("import: %v; it prints %q", err, out)
	}
	again.Run(t)
	if got := again.Events.Wait(t, "serving", "version"); got != last {
		t.Errorf("the first version is %s, want %s, the last of the archive", got, last)
	}
	operatetest.WriteFiles(t, m.Config, map[string]string{"routes.yaml": route(10, 90)})
	newer := ""
	for newer == "" || strings.HasPrefix(newer, strings.Split(last, ".")[0]+".") {
		newer = again.Events.Wait(t, "serving", "version")
	}
	var diff diffView
	again.must(t, &diff, "diff", last, "latest")
	if len(diff.Changes) != 1 || diff.Changes[0].Change != "added" || diff.Changes[0].Object != "VirtualService demo/shop (file/default)" {
		t.Errorf("from the archived world to the new one: %+v", diff.Changes)
	}
	var v verifyView
	again.must(t, &v, "verify")
	restored := 0
	for _, f := range v.Findings {
		if f.Verdict == "restored" {
			restored++
		}
	}
	if !v.Holds || restored != 3 {
		t.Errorf("verify: %+v, want three restored versions", v)
	}
	var events []keyEventView
	again.must(t, &events, "history", "VirtualService/demo/shop")
	if len(events) < 4 || events[0].Effect != "served" {
		t.Errorf("history goes back to %+v", events)
	}
}

// An empty bus takes an archive once; a damaged one is refused.
func TestImportBus(t *testing.T) {
	m := incident(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "mesh.archive")
	if _, _, err := meshlogAt(t, "export", file, "--data", m.Data); err != nil {
		t.Fatal(err)
	}
	server, err := bus.StartServer(bus.ServerOptions{Dir: filepath.Join(dir, "bus"), Listen: "127.0.0.1:0", Accounts: busauth.Accounts("mesh", bus.Operator()), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	where := filepath.Join(dir, "bus", bus.FileName)
	if out, _, err := meshlogAt(t, "import", file, "--bus", where); err != nil || !strings.Contains(out, "Start a builder on it.") {
		t.Fatalf("import: %v; it prints %q", err, out)
	}
	for _, q := range [][]string{{"versions", "-o", "json"}, {"history", "VirtualService/demo/shop"}, {"show", "latest~1"}, {"diff", "latest~2", "latest"}} {
		want, _, err := meshlogAt(t, append(q, "--archive", file)...)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := meshlogAt(t, append(q, "--bus", where)...)
		if err != nil {
			t.Fatal(err)
		}
		if q[0] == "history" { // the imported records have new times
			want, got = times.ReplaceAllString(want, ""), times.ReplaceAllString(got, "")
		}
		if q[0] == "versions" { // the export adds checkpoints to an archive
			want, got = strings.ReplaceAll(want, `    "checkpoint": true,`+"\n", ""), strings.ReplaceAll(got, `    "checkpoint": true,`+"\n", "")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-archive +bus):\n%s", q, diff)
		}
	}
	if _, _, err := meshlogAt(t, "import", file, "--bus", where); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("imported twice: %v", err)
	}

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	damaged := filepath.Join(dir, "damaged")
	if err := os.WriteFile(damaged, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"import", damaged, "--data", filepath.Join(dir, "data")}, {"log", "--archive", damaged}} {
		if out, _, err := meshlogAt(t, args...); err == nil || !strings.Contains(err.Error(), "the archive is damaged") || out != "" {
			t.Errorf("%s: %v; it prints %q", args[0], err, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "data*"))
	if err != nil || len(left) > 0 {
		t.Errorf("a failed import leaves %v, %v", left, err)
	}
}

var times = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}`)
