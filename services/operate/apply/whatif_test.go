package apply

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
)

const whatIfMesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http:
  - match: [{uri: {prefix: /cart}}]
    name: cart
    route: [{destination: {host: shop.internal}}]
  - name: rest
    route: [{destination: {host: shop.internal}}]
`

// run runs what-if on a mesh or an archive, and returns its result and exit code.
func runWhatIf(t *testing.T, stdin string, into any, args ...string) (code int, text string) {
	t.Helper()
	cmd := WhatIf()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(cmd, history.Export())
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	if into != nil && out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0, out.String()
	case asCode(err, &coded):
		return coded.ExitCode(), out.String()
	}
	return 1, out.String() + err.Error()
}

type whatIfResult struct {
	Objects []past.ObjectChange
	Classes []draft.Classes
	Held    string
	// Problems are those that the mesh does not have yet.
	Problems []command.Diagnostic
}

func (r *whatIfResult) resources() (all []string) {
	for _, c := range r.Classes {
		for _, o := range c.Resources {
			all = append(all, o.Change+" "+o.Object)
		}
	}
	return all
}

func (r *whatIfResult) losses() string {
	var all []string
	for _, c := range r.Classes {
		all = append(all, c.Losses...)
	}
	return strings.Join(all, "\n")
}

// what-if shows what a change would do, on a mesh that runs and on its archive alike, and
// writes nothing.
func TestWhatIf(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": whatIfMesh})
	archive := filepath.Join(t.TempDir(), "mesh.archive")
	if code, text := runWhatIf(t, "", nil, "export", archive, "--data", m.Data); code != 0 {
		t.Fatalf("export: %s", text)
	}
	before := versions(t, m)
	for _, c := range []struct {
		name, stdin string
		args        []string
		code        int
		objects     string
		resources   string // one that differs
		losses      string
		problem     string
	}{
		{name: "nothing changes", stdin: whatIfMesh},
		{
			name: "a route goes", stdin: strings.Replace(whatIfMesh, "  - match: [{uri: {prefix: /cart}}]\n    name: cart\n    route: [{destination: {host: shop.internal}}]\n", "", 1),
			code: 3, objects: "changed VirtualService demo/shop (file/default)", resources: "changed RouteConfiguration", losses: "loses the route cart of",
		},
		{
			name: "the last endpoint goes", stdin: strings.Replace(whatIfMesh, "endpoints: [{address: 10.0.0.1}]", "endpoints: []", 1),
			code: 3, objects: "changed ServiceEntry demo/shop (file/default)", resources: "changed ClusterLoadAssignment", losses: "loses its last endpoint",
		},
		{
			name: "a new object", stdin: strings.ReplaceAll(strings.Split(whatIfMesh, "---")[0], "shop", "pay"),
			code: 3, objects: "added ServiceEntry demo/pay (api/default)", resources: "added Cluster",
		},
		{
			name: "an object goes", args: []string{"--delete", "ServiceEntry/demo/shop"},
			code: 3, objects: "removed ServiceEntry demo/shop (file/default)", resources: "removed Cluster", losses: "loses its last endpoint",
		},
		{
			name: "a subset that nobody defines", stdin: strings.Replace(whatIfMesh, "  - name: rest\n    route: [{destination: {host: shop.internal}}]", "  - name: rest\n    route: [{destination: {host: shop.internal, subset: v3}}]", 1),
			code: 3, objects: "changed VirtualService demo/shop (file/default)", resources: "changed RouteConfiguration", problem: `has a subset "v3"`,
		},
		{name: "an invalid object", stdin: strings.Replace(whatIfMesh, "STATIC", "STATIK", 1), code: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"what-if", "-o", "json"}, c.args...)
			if c.stdin != "" {
				args = append(args, "-f", "-")
			}
			var onMesh, onArchive whatIfResult
			code, text := runWhatIf(t, c.stdin, &onMesh, append(args, "--data", m.Data)...)
			if again, _ := runWhatIf(t, c.stdin, &onArchive, append(args, "--archive", archive)...); code != c.code || again != c.code {
				t.Fatalf("exit code %d on the mesh and %d on the archive, want %d: %s", code, again, c.code, text)
			}
			if a, b := strings.Join(onMesh.resources(), "\n"), strings.Join(onArchive.resources(), "\n"); a != b || !strings.Contains(a, c.resources) {
				t.Errorf("resources on the mesh:\n%s\non the archive:\n%s\nwant one with %q", a, b, c.resources)
			}
			if got := onMesh.losses(); c.losses == "" && got != "" || !strings.Contains(got, c.losses) {
				t.Errorf("losses: %q, want %q", got, c.losses)
			}
			found := false
			for _, p := range onMesh.Problems {
				found = found || c.problem != "" && strings.Contains(p.Reason, c.problem)
			}
			if found != (c.problem != "") {
				t.Errorf("problems: %v, want %q", onMesh.Problems, c.problem)
			}
			var objects []string
			for _, o := range onMesh.Objects {
				objects = append(objects, o.Change+" "+o.Object)
			}
			if got := strings.Join(objects, "\n"); got != c.objects {
				t.Errorf("objects: %q, want %q", got, c.objects)
			}
		})
	}
	if after := versions(t, m); after != before {
		t.Errorf("what-if published: %d versions, %d before", after, before)
	}
	if _, text := runWhatIf(t, "a: b: c\n", nil, "what-if", "-f", "-", "--archive", archive); strings.Contains(text, "would change") {
		t.Errorf("of a broken file it says:\n%s", text)
	}
	_, text := runWhatIf(t, strings.Replace(whatIfMesh, "prefix: /cart", "prefix: /basket", 1), nil, "what-if", "-f", "-", "--markdown", "--archive", archive)
	for _, part := range []string{"### What this changes", "```diff", "! VirtualService demo/shop", "loses the route cart"} {
		if !strings.Contains(text, part) {
			t.Errorf("Markdown without %q:\n%s", part, text)
		}
	}
}

// A change that the guard would hold back has an exit code of its own.
func TestWhatIfHeld(t *testing.T) {
	var files strings.Builder
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		files.WriteString("---\n" + strings.ReplaceAll(strings.Split(whatIfMesh, "---")[0], "shop", name))
	}
	m := operatetest.Start(t, map[string]string{"a.yaml": files.String()})
	args := []string{"what-if", "-o", "json", "--data", m.Data}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		args = append(args, "--delete", "ServiceEntry/demo/"+name)
	}
	var r whatIfResult
	if code, text := runWhatIf(t, "", &r, args...); code != 4 || !strings.Contains(r.Held, "lost 5 of its 6 objects") {
		t.Errorf("exit code %d, held: %q: %s", code, r.Held, text)
	}
}
