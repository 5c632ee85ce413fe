package rollback

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

// meshlog runs a command on a mesh, and decodes its JSON output into into.
func meshlog(t *testing.T, m *operatetest.Mesh, into any, args ...string) error {
	t.Helper()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Rollback(), Pin(), Unpin(), Rollouts(), Freeze(), Release(), inspect.Wait(), inspect.Diagnostics(), history.Versions(), history.Diff())
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append(args, "-o", "json", "--data", m.Data))
	err := root.ExecuteContext(t.Context())
	if err == nil && into != nil {
		err = json.Unmarshal(out.Bytes(), into)
	}
	return err
}

func must(t *testing.T, m *operatetest.Mesh, into any, args ...string) {
	t.Helper()
	if err := meshlog(t, m, into, args...); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

func service(name, address string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: demo}
spec:
  hosts: [%[1]s.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: %[2]s}]
`, name, address)
}

func entry(address string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: w1, namespace: demo}
spec: {address: %s, labels: {app: pay}}
`, address)
}

// save writes a file, and returns the version that has it.
func save(t *testing.T, m *operatetest.Mesh, name, text string) string {
	t.Helper()
	operatetest.WriteFiles(t, m.Config, map[string]string{name: text})
	return m.Events.Wait(t, "serving", "version")
}

// result is a view as JSON has it.
type result struct {
	View
	Version string `json:"version"`
}

func changed(v result) (objects []string) {
	for _, c := range v.Changes {
		objects = append(objects, c.Change+" "+c.Object)
	}
	return objects
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// content returns what the newest version differs in from another one, overlays left out.
func differences(t *testing.T, m *operatetest.Mesh, from string) (objects []string) {
	t.Helper()
	var v struct{ Changes []past.ObjectChange }
	must(t, m, &v, "diff", from, "latest")
	for _, c := range v.Changes {
		if c.Overlay == "" {
			objects = append(objects, c.Change+" "+c.Object)
		}
	}
	return objects
}

// M7: a rollback serves configuration as it was, whatever the source offers, until it
// is released. Endpoints go on.
func TestRollback(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "w.yaml": entry("10.1.0.1")})
	var versions []struct{ Version string }
	must(t, m, &versions, "versions")
	good := versions[0].Version
	save(t, m, "a.yaml", service("a", "10.0.0.2"))
	save(t, m, "b.yaml", service("b", "10.0.0.3"))

	var v result
	must(t, m, &v, "rollback", good, "--reason", "try", "--dry-run")
	equal(t, "dry run", changed(v), "changed ServiceEntry demo/a (file/default)", "removed ServiceEntry demo/b (file/default)")
	if v.Seq != 0 || !v.DryRun {
		t.Errorf("a dry run wrote record %d", v.Seq)
	}
	v = result{}
	must(t, m, &v, "rollback", good, "--reason", "503 since b")
	equal(t, "rollback", changed(v), "changed ServiceEntry demo/a (file/default)", "removed ServiceEntry demo/b (file/default)")
	m.Events.Wait(t, "serving", "version")

	// The source goes on: of what it offers, only endpoints are served.
	operatetest.WriteFiles(t, m.Config, map[string]string{"a.yaml": service("a", "10.0.0.9"), "c.yaml": service("c", "10.0.0.4")})
	save(t, m, "w.yaml", entry("10.1.0.2"))
	before := differences(t, m, good)
	equal(t, "since the rollback", before, "changed ServiceEntry demo/a (file/default)", "added ServiceEntry demo/b (file/default)", "changed WorkloadEntry demo/w1 (file/default)")

	var problems []command.Diagnostic
	must(t, m, &problems, "diagnostics")
	found := false
	for _, d := range problems {
		found = found || strings.Contains(d.Reason, v.ID) && strings.Contains(d.Reason, "demo/c")
	}
	if !found {
		t.Errorf("no Diagnostic says what %s withholds: %v", v.ID, problems)
	}
	var words []command.Word
	must(t, m, &words, "release")
	if len(words) != 1 || words[0].ID != v.ID || words[0].Reason != "503 since b" || words[0].Scope != "all configuration" || words[0].Objects != 2 {
		t.Errorf("what holds: %+v", words)
	}

	released := result{}
	must(t, m, &released, "release", v.ID, "--dry-run")
	equal(t, "release, dry run", changed(released),
		"changed ServiceEntry demo/a (file/default)", "added ServiceEntry demo/b (file/default)", "added ServiceEntry demo/c (file/default)")
	must(t, m, &released, "release", v.ID)
	equal(t, "release", changed(released),
		"changed ServiceEntry demo/a (file/default)", "added ServiceEntry demo/b (file/default)", "added ServiceEntry demo/c (file/default)")
	words = nil
	if must(t, m, &words, "release"); len(words) != 0 {
		t.Errorf("after the release: %+v", words)
	}
}

// A rollback of single objects keeps nothing else.
func TestRollbackObject(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "w.yaml": entry("10.1.0.1")})
	save(t, m, "a.yaml", service("a", "10.0.0.2"))
	save(t, m, "b.yaml", service("b", "10.0.0.3"))
	var v result
	must(t, m, &v, "rollback", "latest~2", "ServiceEntry/demo/a", "--reason", "typo")
	equal(t, "rollback", changed(v), "changed ServiceEntry demo/a (file/default)")
	m.Events.Wait(t, "serving", "version")
	save(t, m, "c.yaml", service("c", "10.0.0.4"))
	var d struct{ Changes []past.ObjectChange }
	must(t, m, &d, "diff", "latest~1", "latest")
	if len(d.Changes) != 1 || d.Changes[0].Change != "added" {
		t.Errorf("a new object beside the rollback: %+v", d.Changes)
	}
	for args, want := range map[string]string{
		"rollback latest~1 WorkloadEntry/demo/w1 --reason x": "is no configuration",
		"rollback latest~1 ServiceEntry/demo/zz --reason x":  "did you mean",
		"rollback latest":                                        "--reason is missing",
		"rollback latest~9 --reason x":                           "latest~9",
		"release rollback-nothing":                               "no rollback or freeze",
		"freeze file --reason x":                                 "want SOURCE/INSTANCE",
		"freeze consul/dc9 --reason x":                           "no record of it",
		"rollback latest -N demo ServiceEntry/demo/a --reason x": "give one of them",
	} {
		if err := meshlog(t, m, nil, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// M7: a frozen source changes nothing, endpoints included; the release is one change.
func TestFreeze(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "w.yaml": entry("10.1.0.1")})
	var v result
	must(t, m, &v, "freeze", "file/default", "--reason", "a deployment runs")
	if len(v.Changes) != 0 {
		t.Errorf("a freeze changes %v", changed(v))
	}
	if err := meshlog(t, m, nil, "freeze", "file/default", "--reason", "again"); err == nil || !strings.Contains(err.Error(), "froze it already") {
		t.Errorf("frozen twice: %v", err)
	}
	frozen := v.Version
	operatetest.WriteFiles(t, m.Config, map[string]string{
		"a.yaml": service("a", "10.0.0.2"), "w.yaml": entry("10.1.0.2"), "b.yaml": service("b", "10.0.0.3"),
	})
	// The mesh restarts: what was frozen stays.
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	m.Run(t)
	m.Events.Wait(t, "listed", "keys")
	equal(t, "frozen", differences(t, m, frozen))
	released := result{}
	must(t, m, &released, "release", v.ID)
	equal(t, "release", changed(released), "changed ServiceEntry demo/a (file/default)", "added ServiceEntry demo/b (file/default)", "changed WorkloadEntry demo/w1 (file/default)")
}
