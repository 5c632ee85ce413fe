package file_test

import (
	gocmp "cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

// TestReadme checks that the objects in the examples of the README are valid.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	s := examples{t: t}
	for i, b := range blocks { // each alone: two of them are of the same object
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/"+string(rune('a'+i))+".yaml", b[1], 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.cancel = cancel
		_ = file.New(dir).Run(ctx, &s)
	}
	if s.good != 17 {
		t.Errorf("%d good objects in %d examples, want 17", s.good, len(blocks))
	}
}

var update = flag.Bool("update", false, "rewrite the README's tables")

// TestReadmeTables checks that the README's tables of kinds and fields match the
// tables of package kind.
func TestReadmeTables(t *testing.T) {
	const name, begin, end = "../README.md", "-update` -->\n", "<!-- /kinds -->"
	readme, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(readme), begin)
	got, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no %q", name, end)
	}
	want := kindTable() + "\nThese fields of kinds with an effect have none yet. `trafficPolicy` includes those of ports and subsets; `defaultConfig` is all its fields except those that stand here or have an effect, `gatewayTopology`, `envoyAccessLogService` and `tracing`:\n\n" + noEffectTable()
	if *update {
		if err := os.WriteFile(name, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run this test with -update (-want +got):\n%s", diff)
	}
}

func kindTable() string {
	effects := map[kind.Meaning]string{
		kind.Served: "yes", kind.Context: "with others: endpoints and where they are", kind.NotYet: "none yet: carried on the log",
	}
	var b strings.Builder
	b.WriteString("| Kind | apiVersion | Effect |\n|---|---|---|\n")
	for _, k := range kind.All() {
		versions := k.Versions
		if k.Group != "" {
			versions = slices.Clone(k.Versions)
			versions[0] = k.APIVersion()
		}
		effect := effects[k.Meaning]
		if k.ClusterOnly {
			effect = "not in documents; of a cluster: carried on the log"
			if k.Name == "Secret" {
				effect = "not in documents; of a cluster or a directory of credentials: carried on the log"
			}
		}
		if k.Name == "ReferenceGrant" {
			effect = "with others: Secrets and ConfigMaps that Gateways and DestinationRules of other namespaces may name"
		}
		if k.Form == kind.Produced {
			effect = "not in documents; meshlog makes it"
		}
		name := k.Name
		if k.Document != "" {
			name = k.Document + " (" + k.Name + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, strings.Join(versions, ", "), effect)
	}
	return b.String()
}

func noEffectTable() string {
	var b strings.Builder
	b.WriteString("| Kind | Fields | Instead |\n|---|---|---|\n")
	type same struct{ kind, instead string }
	var order []same
	fields := map[same][]string{}
	for _, n := range validate.NoEffects() {
		field := gocmp.Or(n.As, n.Field)
		if strings.Contains(field, "portLevelSettings") || strings.HasPrefix(field, "subsets.trafficPolicy") {
			continue // part of trafficPolicy
		}
		if strings.HasPrefix(field, "defaultConfig.") && strings.Count(field, ".") == 1 {
			field = "defaultConfig"
		}
		at := same{n.Kind, n.Instead}
		if fields[at] == nil {
			order = append(order, at)
		}
		if field = "`" + field + "`"; !slices.Contains(fields[at], field) {
			fields[at] = append(fields[at], field)
		}
	}
	for _, at := range order {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", at.kind, strings.Join(fields[at], ", "), at.instead)
	}
	return b.String()
}

type examples struct {
	t      *testing.T
	cancel func()
	good   int
}

func (s *examples) List(_ context.Context, l watcher.Listing) error {
	for _, o := range l.Objects {
		k, _ := kind.ByName(o.Kind)
		m, err := k.Decode(o.Value.Type, o.Value.Bytes)
		if err != nil {
			s.t.Errorf("%s: %v", o.Origin, err)
			continue
		}
		for _, p := range k.Validate("", m) {
			s.t.Errorf("%s: %+v", o.Origin, p)
		}
		s.good++
	}
	s.cancel()
	return nil
}

func (s *examples) Change(context.Context, []watcher.Object) error { return nil }

func (s *examples) Problems(origin string, ds []problem.Diagnostic) {
	for _, d := range ds {
		s.t.Errorf("%s: %+v", origin, d)
	}
}
