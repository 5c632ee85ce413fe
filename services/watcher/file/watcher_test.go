package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

// said is one report of the watcher, as text.
type said string

// rig runs a watcher of a directory and receives its reports.
type rig struct {
	t    *testing.T
	dir  string
	said chan said
	end  chan error
	stop context.CancelFunc
}

func start(t *testing.T, dir string) *rig {
	t.Helper()
	return startWatcher(t, dir, file.New(dir))
}

func startWatcher(t *testing.T, dir string, w *file.Watcher) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{t: t, dir: dir, said: make(chan said, 1000), end: make(chan error, 1), stop: cancel}
	go func() { r.end <- w.Run(ctx, r) }()
	t.Cleanup(cancel)
	return r
}

func (r *rig) List(_ context.Context, l watcher.Listing) error {
	partial := ""
	if l.Partial {
		partial = " partial"
	}
	r.said <- said("list" + partial + objects(l.Objects))
	return nil
}

func (r *rig) Change(_ context.Context, set []watcher.Object) error {
	r.said <- said("change" + objects(set))
	return nil
}

func (r *rig) Problems(origin string, ds []problem.Diagnostic) {
	text := "problems " + origin
	for _, d := range ds {
		text += fmt.Sprintf("\n  %s %s %s %s: %s", d.Severity, d.Code, d.Origin, d.Field, d.Reason)
	}
	r.said <- said(text)
}

func objects(set []watcher.Object) string {
	var b strings.Builder
	for _, o := range set {
		b.WriteString("\n  ")
		if o.Delete {
			b.WriteString("delete ")
		}
		fmt.Fprintf(&b, "%s %s/%s %s", o.Kind, o.Namespace, o.Name, o.Origin)
		if !o.Delete {
			b.WriteString(" " + text(o))
		}
	}
	return b.String()
}

// text returns a short text for an object's content.
func text(o watcher.Object) string {
	if o.Value.Type == ident.Undecoded {
		var u registryv1.Undecoded
		if err := proto.Unmarshal(o.Value.Bytes, &u); err != nil {
			return err.Error()
		}
		return "undecoded: " + u.GetField() + ": " + u.GetError()
	}
	k, _ := kind.ByName(o.Kind)
	m, err := k.Decode(o.Value.Type, o.Value.Bytes)
	if err != nil {
		return err.Error()
	}
	if ref, ok := m.(*registryv1.SecretReference); ok {
		return reference(ref)
	}
	if s, ok := m.(interface{ GetRootNamespace() string }); ok {
		return s.GetRootNamespace()
	}
	return ""
}

// want waits for the next reports and compares them.
func (r *rig) want(words ...string) {
	r.t.Helper()
	for _, w := range words {
		select {
		case got := <-r.said:
			if diff := cmp.Diff(w, string(got)); diff != "" {
				r.t.Fatalf("(-want +got):\n%s", diff)
			}
		case err := <-r.end:
			r.end <- err
			if len(r.said) == 0 {
				r.t.Fatalf("Run returned %v; want %s", err, w)
			}
			if diff := cmp.Diff(w, string(<-r.said)); diff != "" {
				r.t.Fatalf("(-want +got):\n%s", diff)
			}
		}
	}
}

func (r *rig) wantEnd(reason string) {
	r.t.Helper()
	select {
	case got := <-r.said:
		r.t.Fatalf("got %s, want the end", got)
	case err := <-r.end:
		if len(r.said) > 0 {
			r.t.Fatalf("got %s, want the end", <-r.said)
		}
		if reason == "" && err != nil || reason != "" && (err == nil || !strings.Contains(err.Error(), reason)) {
			r.t.Fatalf("Run returned %v, want %s", err, reason)
		}
	}
}

// marker makes a change and requires that it is the next report, so the watcher
// ignored all changes before it.
func (r *rig) marker(n int) {
	r.t.Helper()
	r.write(fmt.Sprintf("zz-marker-%d.yaml", n), policy(fmt.Sprintf("marker-%d", n), "x"))
	r.want(fmt.Sprintf("change\n  Resource default/marker-%d zz-marker-%d.yaml:1 ", n, n))
}

// write writes a file atomically.
func (r *rig) write(name, content string) {
	r.t.Helper()
	tmp := filepath.Join(r.dir, ".tmp")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// policy returns a document with a Resource. Reports show that its content changed,
// but not the content.
func policy(name, content string) string {
	return fmt.Sprintf("apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: %s}\n"+
		"spec: {nodes: {cluster: %q}, resource: {\"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, clusterName: x}}\n", name, content)
}

func docs(ds ...string) string { return strings.Join(ds, "---\n") }

const broken = "apiVersion: envoy.meshlog.dev/v1\nkind: [\n"

func dirWith(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestList(t *testing.T) {
	r := start(t, dirWith(t,
		"a.yaml", docs(policy("a1", "x"), policy("a2", "x")),
		"sub/deep/b.yml", "# comment\n\n"+policy("b", "x"),
		"c.json", `{"apiVersion": "meshlog.dev/v1", "kind": "MeshPolicy", "metadata": {"name": "default"}, "spec": {"rootNamespace": "ns"}}`,
		".hidden.yaml", policy("hidden", "x"),
		".git/x.yaml", policy("hidden", "x"),
		"notes.txt", "text",
	))
	r.want("list\n  MeshPolicy /default c.json:1 ns\n  Resource default/a1 a.yaml:1 \n  Resource default/a2 a.yaml:6 \n  Resource default/b sub/deep/b.yml:3 ")
	r.stop()
	r.wantEnd("canceled")
}

func TestChanges(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", docs(policy("a1", "x"), policy("a2", "x"))))
	r.want("list\n  Resource default/a1 a.yaml:1 \n  Resource default/a2 a.yaml:6 ")
	r.write("a.yaml", docs(policy("a1", "x"), policy("a2", "y")))
	r.want("change\n  Resource default/a2 a.yaml:6 ")
	r.write("a.yaml", docs(policy("a1", "z"), policy("a2", "z")))
	r.want("change\n  Resource default/a1 a.yaml:1 \n  Resource default/a2 a.yaml:6 ")
	r.write("b.yaml", policy("b", "x"))
	r.want("change\n  Resource default/b b.yaml:1 ")
	r.write("a.yaml", policy("a2", "z"))
	r.want("change\n  delete Resource default/a1 a.yaml:1")
	r.do(os.Remove(r.path("b.yaml")))
	r.want("change\n  delete Resource default/b b.yaml:1")
}

func TestNothingNew(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", policy("a", "x")))
	r.want("list\n  Resource default/a a.yaml:1 ")
	r.write("a.yaml", policy("a", "x"))                       // touched
	r.write("a.yaml", "# moved down\n"+policy("a", "x"))      // moved
	r.write(".a.yaml.swp", policy("b", "x"))                  // ignored
	r.write("a.txt", policy("b", "x"))                        // not ours
	r.do(os.Rename(r.path("a.yaml"), r.path("renamed.yaml"))) // of the file only
	r.marker(1)
}

// TestSaves writes a file in the ways in which programs do.
func TestSaves(t *testing.T) {
	for _, c := range []struct {
		name string
		save func(r *rig, content string) error
	}{
		{"in place", func(r *rig, content string) error { return os.WriteFile(r.path("a.yaml"), []byte(content), 0o644) }},
		{"renamed over", func(r *rig, content string) error {
			if err := os.WriteFile(r.path("a.yaml.tmp"), []byte(content), 0o644); err != nil {
				return err
			}
			return os.Rename(r.path("a.yaml.tmp"), r.path("a.yaml"))
		}},
		{"backup and new", func(r *rig, content string) error {
			if err := os.Rename(r.path("a.yaml"), r.path("a.yaml~")); err != nil {
				return err
			}
			return os.WriteFile(r.path("a.yaml"), []byte(content), 0o644)
		}},
		{"removed and made", func(r *rig, content string) error {
			if err := os.Remove(r.path("a.yaml")); err != nil {
				return err
			}
			return os.WriteFile(r.path("a.yaml"), []byte(content), 0o644)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := dirWith(t, "a.yaml", policy("a", "0"))
			r := startWatcher(t, dir, file.NewPatient(dir, time.Hour))
			r.want("list\n  Resource default/a a.yaml:1 ")
			for i := range 3 {
				r.do(c.save(r, policy("a", fmt.Sprint(i+1))))
				r.want("change\n  Resource default/a a.yaml:1 ")
			}
		})
	}
}

// TestHalfWritten checks that the watcher waits for the rest of a file that ends
// within a line, both in a change and in the listing.
func TestHalfWritten(t *testing.T) {
	whole := docs(policy("a", "1"), policy("b", "1"))
	half, _, _ := strings.Cut(whole, "\nspec: {nodes: {cluster: \"1\"}}\n---") // valid YAML without b
	for _, c := range []struct{ name, before, first string }{
		{"changed", docs(policy("a", "0"), policy("b", "0")), "list"},
		{"listed", half, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := dirWith(t, "a.yaml", c.before)
			r := startWatcher(t, dir, file.NewPatient(dir, time.Hour))
			both := "\n  Resource default/a a.yaml:1 \n  Resource default/b a.yaml:6 "
			next := "list"
			if c.first != "" {
				r.want(c.first + both)
				next = "change"
			}
			r.do(os.WriteFile(r.path("a.yaml"), []byte(half), 0o644))
			r.do(os.WriteFile(r.path("a.yaml"), []byte(whole), 0o644))
			r.want(next + both)
			r.marker(1)
		})
	}
}

// TestManyFiles checks that saving many files at once is one change set.
func TestManyFiles(t *testing.T) {
	r := start(t, dirWith(t))
	r.want("list")
	stage := t.TempDir()
	want := "change"
	for i := range 50 {
		name := fmt.Sprintf("f%02d.yaml", i)
		r.do(os.WriteFile(filepath.Join(stage, name), []byte(policy(fmt.Sprintf("o%02d", i), "x")), 0o644))
		want += fmt.Sprintf("\n  Resource default/o%02d sub/%s:1 ", i, name)
	}
	r.do(os.Rename(stage, r.path("sub")))
	r.want(want)
}

func TestSubdirectories(t *testing.T) {
	r := start(t, dirWith(t, "sub/a.yaml", policy("a", "x")))
	r.want("list\n  Resource default/a sub/a.yaml:1 ")
	r.do(os.MkdirAll(r.path("new/deep"), 0o755))
	r.write("new/deep/b.yaml", policy("b", "x"))
	r.want("change\n  Resource default/b new/deep/b.yaml:1 ")
	r.write("new/deep/b.yaml", policy("b", "y"))
	r.want("change\n  Resource default/b new/deep/b.yaml:1 ")
	r.do(os.Rename(r.path("new/deep"), r.path("moved")))
	r.marker(1)
	r.write("moved/b.yaml", policy("b", "z"))
	r.want("change\n  Resource default/b moved/b.yaml:1 ")
	r.do(os.RemoveAll(r.path("sub")))
	r.want("change\n  delete Resource default/a sub/a.yaml:1")
	r.do(os.MkdirAll(r.path("sub"), 0o755))
	r.write("sub/a.yaml", policy("a", "again"))
	r.want("change\n  Resource default/a sub/a.yaml:1 ")
}

func TestBroken(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", docs(policy("a1", "x"), policy("a2", "x"))))
	r.want("list\n  Resource default/a1 a.yaml:1 \n  Resource default/a2 a.yaml:6 ")
	// The valid document applies, and the missing object stays.
	r.write("a.yaml", docs(policy("a1", "y"), broken))
	r.want("change\n  Resource default/a1 a.yaml:1 ",
		"problems a.yaml\n  error syntax a.yaml:7 : did not find expected node content")
	r.write("a.yaml", docs(policy("a1", "y"), policy("a2", "x"))) // with a2 as before
	r.want("problems a.yaml")
	r.write("a.yaml", "") // truncated, as at the start of a write
	r.want("problems a.yaml\n  error unreadable a.yaml:1 : the file is empty; its writer may not have finished")
	r.write("a.yaml", docs(policy("a2", "y")))
	r.want("change\n  delete Resource default/a1 a.yaml:1\n  Resource default/a2 a.yaml:1 ", "problems a.yaml")
}

func TestUndecoded(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", policy("a", "x")))
	r.want("list\n  Resource default/a a.yaml:1 ")
	r.write("a.yaml", "apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: a}\nspec:\n  nodes: {cluster: x}\n  resorce: {}\n")
	r.want(`change` + "\n" + `  Resource default/a a.yaml:6 undecoded: spec.resorce: unknown field "resorce"; did you mean resource?`)
	r.write("a.yaml", "apiVersion: envoy.meshlog.dev/v1\nkind: Resource\nmetadata: {name: a}\nspec:\n  nodes: {}\n  nodes: {}\n")
	r.want(`change` + "\n" + `  Resource default/a a.yaml:6 undecoded: spec.nodes: key "nodes" is there twice, first on line 5`)
}

func TestPartialListing(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", policy("a", "x"), "b.yaml", docs(policy("b", "x"), broken), "c.yaml", broken))
	r.want("list partial\n  Resource default/a a.yaml:1 \n  Resource default/b b.yaml:1 ")
	r.wantProblems("b.yaml", "c.yaml")
	r.write("b.yaml", policy("b", "y"))
	r.want("change\n  Resource default/b b.yaml:1 ", "problems b.yaml")
	r.write("c.yaml", policy("c", "x"))
	r.want("change\n  Resource default/c c.yaml:1 ", "problems c.yaml")
	r.wantEnd("")
}

// wantProblems waits for problems of some files, in any order.
func (r *rig) wantProblems(origins ...string) {
	r.t.Helper()
	var got []string
	for range origins {
		first, _, _ := strings.Cut(string(<-r.said), "\n")
		got = append(got, strings.TrimPrefix(first, "problems "))
	}
	slices.Sort(got)
	if diff := cmp.Diff(origins, got); diff != "" {
		r.t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestUnreadable uses a broken link as a file that cannot be read.
func TestUnreadable(t *testing.T) {
	dir := dirWith(t, "a.yaml", policy("a", "x"))
	if err := os.Symlink("nowhere", filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	r := start(t, dir)
	r.want("list partial\n  Resource default/a a.yaml:1 ", "problems b.yaml\n  error unreadable b.yaml : no such file or directory")
	r.do(os.Symlink("nowhere", r.path(".link")))
	r.do(os.Rename(r.path(".link"), r.path("a.yaml")))
	r.want("problems a.yaml\n  error unreadable a.yaml : no such file or directory") // the object a is not deleted
	r.do(os.Remove(r.path("b.yaml")))
	r.want("problems b.yaml")
	r.wantEnd("")
}

// TestMountedConfigMap updates a directory as kubelet updates a mounted ConfigMap.
func TestMountedConfigMap(t *testing.T) {
	dir := dirWith(t, "..v1/a.yaml", policy("a", "1"), "..v1/b.yaml", policy("b", "1"))
	for _, l := range [][2]string{{"..v1", "..data"}, {"..data/a.yaml", "a.yaml"}, {"..data/b.yaml", "b.yaml"}} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, dir)
	r.want("list\n  Resource default/a a.yaml:1 \n  Resource default/b b.yaml:1 ")
	for i := 2; i < 5; i++ {
		version := fmt.Sprintf("..v%d", i)
		r.do(os.Mkdir(r.path(version), 0o755))
		r.write(version+"/a.yaml", policy("a", version))
		r.write(version+"/b.yaml", policy("b", version))
		r.do(os.Symlink(version, r.path("..data_tmp")))
		r.do(os.Rename(r.path("..data_tmp"), r.path("..data")))
		r.do(os.RemoveAll(r.path(fmt.Sprintf("..v%d", i-1))))
		r.want("change\n  Resource default/a a.yaml:1 \n  Resource default/b b.yaml:1 ")
	}
}

func TestLinks(t *testing.T) {
	elsewhere := dirWith(t, "real.yaml", policy("linked", "1"), "dir/x.yaml", policy("x", "1"))
	dir := dirWith(t, "sub/a.yaml", policy("a", "x"))
	for _, l := range [][2]string{
		{filepath.Join(elsewhere, "real.yaml"), "link.yaml"}, {filepath.Join(elsewhere, "dir"), "dir"},
		{"..", "sub/up"}, {"sub", "zub"}, {".", "self"},
	} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, dir)
	r.want("list\n  Resource default/a sub/a.yaml:1 \n  Resource default/linked link.yaml:1 \n  Resource default/x dir/x.yaml:1 ")
	r.do(os.WriteFile(filepath.Join(elsewhere, "real.yaml"), []byte(policy("linked", "2")), 0o644))
	r.want("change\n  Resource default/linked link.yaml:1 ")
	r.do(os.WriteFile(filepath.Join(elsewhere, "dir/x.yaml"), []byte(policy("x", "2")), 0o644))
	r.want("change\n  Resource default/x dir/x.yaml:1 ")
}

// TestLinkedDirectory swaps a link that is the watched directory itself.
func TestLinkedDirectory(t *testing.T) {
	top := dirWith(t, "v1/a.yaml", policy("a", "1"), "v2/a.yaml", policy("a", "2"), "v2/b.yaml", policy("b", "2"))
	link := filepath.Join(top, "mesh")
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
	r := start(t, link)
	r.want("list\n  Resource default/a a.yaml:1 ")
	r.do(os.Symlink("v2", filepath.Join(top, "tmp")))
	r.do(os.Rename(filepath.Join(top, "tmp"), link))
	r.want("change\n  Resource default/a a.yaml:1 \n  Resource default/b b.yaml:1 ")
	r.write("a.yaml", policy("a", "3"))
	r.want("change\n  Resource default/a a.yaml:1 ")
}

// TestGone checks that no object is deleted when the directory is removed.
func TestGone(t *testing.T) {
	if err := file.New(filepath.Join(t.TempDir(), "nothing")).Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a directory that is not there: %v", err)
	}
	top := dirWith(t, "mesh/a.yaml", policy("a", "1"), "mesh/sub/b.yaml", policy("b", "1"))
	r := start(t, filepath.Join(top, "mesh"))
	r.want("list\n  Resource default/a a.yaml:1 \n  Resource default/b sub/b.yaml:1 ")
	r.do(os.RemoveAll(r.dir))
	r.wantEnd("no such file or directory")

	r.do(os.MkdirAll(r.dir, 0o755))
	r.write("a.yaml", policy("a", "2"))
	r = start(t, r.dir)
	r.want("list\n  Resource default/a a.yaml:1 ")
	r.do(os.Rename(r.dir, r.dir+".old"))
	r.wantEnd("no such file or directory")
}

func TestReports(t *testing.T) {
	r := start(t, dirWith(t,
		"a.yaml", docs(policy("x", "1"), policy("x", "2")),
		"b.yaml", policy("x", "3"),
		"c.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n",
	))
	r.want("list\n  Resource default/x a.yaml:1 ")
	got := []string{string(<-r.said), string(<-r.said), string(<-r.said)}
	slices.Sort(got)
	want := []string{
		"problems a.yaml\n  error duplicate a.yaml:6 metadata.name: Resource default/x is in a.yaml:1 already",
		"problems b.yaml\n  error duplicate b.yaml:1 metadata.name: Resource default/x is in a.yaml:1 already",
		"problems c.yaml\n  warning unknown-kind c.yaml:1 kind: meshlog does not know apiVersion apps/v1, kind Deployment",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Without the first file, the duplicate in b.yaml applies.
	r.do(os.Remove(r.path("a.yaml")))
	r.want("change\n  Resource default/x b.yaml:1 ")
	r.wantProblems("a.yaml", "b.yaml")
}

// TestMisnamedKind checks that a document with an unknown kind of meshlog's own API
// groups counts as broken, so the object is not deleted.
func TestMisnamedKind(t *testing.T) {
	r := start(t, dirWith(t, "a.yaml", policy("a", "x"), "b.yaml", policy("b", "x")))
	r.want("list\n  Resource default/a a.yaml:1 \n  Resource default/b b.yaml:1 ")
	r.write("a.yaml", strings.Replace(policy("a", "x"), "Resource", "Resorce", 1))
	r.want("problems a.yaml\n  error unknown-kind a.yaml:1 kind: meshlog does not know apiVersion envoy.meshlog.dev/v1, kind Resorce")
	r.write("b.yaml", strings.Replace(policy("b", "x"), "dev/v1", "dev/v2", 1))
	r.want("problems b.yaml\n  error unknown-kind b.yaml:1 kind: meshlog does not know apiVersion envoy.meshlog.dev/v2, kind Resource")
}

// TestSinkEnds checks that an error of the sink ends the run.
func TestSinkEnds(t *testing.T) {
	over := errors.New("over")
	if err := file.New(t.TempDir()).Run(t.Context(), deaf{over}); !errors.Is(err, over) {
		t.Errorf("Run returned %v", err)
	}
}

type deaf struct{ err error }

func (d deaf) List(context.Context, watcher.Listing) error    { return d.err }
func (d deaf) Change(context.Context, []watcher.Object) error { return d.err }
func (d deaf) Problems(string, []problem.Diagnostic)          {}

// TestFirstProblem checks that the origin of an invalid object is the invalid line,
// and that of a valid object its first line.
func TestFirstProblem(t *testing.T) {
	rule := func(size string) string {
		return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a}\nspec:\n  host: a\n" +
			"  trafficPolicy:\n    loadBalancer:\n      consistentHash:\n        useSourceIp: true\n        maglev: {tableSize: " + size + "}\n"
	}
	r := start(t, dirWith(t, "a.yaml", rule("11")))
	r.want("list\n  DestinationRule default/a a.yaml:1 ")
	r.write("a.yaml", rule("10"))
	r.want("change\n  DestinationRule default/a a.yaml:10 ")
}

// TestSecret checks that a Secret never gets to the log, and that the other objects
// of its file do.
func TestSecret(t *testing.T) {
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {tls.key: private}\n"
	r := start(t, dirWith(t, "a.yaml", docs(secret, policy("a", "x"))))
	r.want("list\n  Resource default/a a.yaml:6 ")
	r.want("problems a.yaml\n  error secret a.yaml:1 kind: a Secret does not go on the log, whose readers could all read the key")
}

// TestInlineKey checks that an inline private key never gets to the log, whether the
// object is otherwise valid or not.
func TestInlineKey(t *testing.T) {
	const key = "      privateKey: |\n        -----BEGIN PRIVATE KEY-----\n        c2VjcmV0\n        -----END PRIVATE KEY-----\n"
	gateway := "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  servers:\n  - hosts: [\"*\"]\n    tls:\n" + key
	for name, text := range map[string]string{"good but for it": gateway, "with a field twice": gateway + key} {
		objects, problems := file.Objects("a.yaml", []byte(text))
		if len(objects) != 1 || len(problems) > 0 {
			t.Fatalf("%s: %v, %v", name, objects, problems)
		}
		var u registryv1.Undecoded
		if err := proto.Unmarshal(objects[0].Value.Bytes, &u); err != nil || objects[0].Value.Type != ident.Undecoded {
			t.Fatalf("%s: offered as %s, %v", name, objects[0].Value.Type, err)
		}
		if strings.Contains(u.String(), "c2VjcmV0") || !strings.Contains(u.GetError(), "holds a private key") {
			t.Errorf("%s: offered as %v", name, &u)
		}
		if name == "good but for it" && (u.GetField() != "spec.servers[0].tls.privateKey" || objects[0].Origin != "a.yaml:8") {
			t.Errorf("%s: field %q, origin %s", name, u.GetField(), objects[0].Origin)
		}
	}
}
