package manifest_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"meshlog.dev/deploy/testkit/goldentest"
	"meshlog.dev/services/mesh/manifest"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestParse reads pairs of a file and its documents.
func TestParse(t *testing.T) {
	goldentest.Pairs(t, *update, "want", func(_ *testing.T, _ string, file []byte) string { return dump(manifest.Parse(file)) })
}

func dump(docs []manifest.Document) string {
	var b strings.Builder
	for _, d := range docs {
		fmt.Fprintf(&b, "%d: %s %s %s/%s", d.Line, d.APIVersion, d.Kind, d.Metadata.Namespace, d.Metadata.Name)
		if len(d.Metadata.Labels) > 0 || len(d.Metadata.Annotations) > 0 {
			fmt.Fprintf(&b, " %v %v", d.Metadata.Labels, d.Metadata.Annotations)
		}
		if !d.Metadata.Created.IsZero() {
			fmt.Fprintf(&b, " %s", d.Metadata.Created.Format(time.RFC3339))
		}
		b.WriteString("\n")
		if err := cmp.Or(d.Err, d.Unknown()); err != nil {
			fmt.Fprintf(&b, "  %v; %s\n", err, err.Advice)
			continue
		}
		for i, l := range strings.Split(string(d.Spec), "\n") {
			path, line := d.Place(i + 1)
			fmt.Fprintf(&b, "  %s    <- %s, line %d\n", l, path, line)
		}
	}
	return b.String()
}

func TestObject(t *testing.T) {
	d := manifest.Parse([]byte(`# a comment
apiVersion: v1
kind: K
metadata: {name: x}

also:
- a
spec: {b: c}
`))[0]
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	if err := d.Unknown(); err == nil || err.Line != 6 || err.Field != "also" {
		t.Errorf("an unknown field: %v", err)
	}
	var got strings.Builder
	for i, l := range strings.Split(string(d.Object), "\n") {
		path, line := d.PlaceInObject(i + 1)
		fmt.Fprintf(&got, "%s <- %s %d\n", l, path, line)
	}
	want := `{ <-  2
"apiVersion": "v1", <- apiVersion 2
"kind": "K", <- kind 3
"metadata": { <- metadata 4
"name": "x"}, <- metadata.name 4
"also": [ <- also 6
"a"], <- also[0] 7
"spec": { <- spec 8
"b": "c"}} <- spec.b 8
`
	if diff := gocmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff("{\n\"b\": \"c\"}", string(d.Spec)); diff != "" {
		t.Error(diff)
	}
}

func TestFieldLine(t *testing.T) {
	docs := manifest.Parse([]byte(`# a comment
apiVersion: v1
kind: K
metadata: {name: x}
spec:
  requiredSources:
  - source: a
  - source: b
    instance: c
  per_filter:
    envoy.filters.http.lua:
      on: 1
`))
	for _, c := range []struct {
		field string
		want  int
	}{
		{"spec.requiredSources[1].instance", 9},
		{"spec.requiredSources[0]", 7},
		{"spec.requiredSources[1].nothing", 8},
		{`spec.per_filter["envoy.filters.http.lua"].on`, 12},
		{"spec.required", 5},
		{"spec", 5},
		{"metadata.name", 4},
		{"", 2},
	} {
		if got := docs[0].FieldLine(c.field); got != c.want {
			t.Errorf("%s: line %d, want %d", c.field, got, c.want)
		}
	}
}

// TestSpec reads texts that are only a spec. Their line numbers begin at 1.
func TestSpec(t *testing.T) {
	d := manifest.Spec([]byte("# a comment\na: 1\n\nb:\n- c: &x {d: 2}\n- *x\n"))
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	if diff := gocmp.Diff("{\n\"a\": 1,\n\"b\": [\n{\n\"c\": {\n\"d\": 2}},\n{\n\"d\": 2}]}", string(d.Spec)); diff != "" {
		t.Error(diff)
	}
	if path, line := d.Place(4); path != "spec.b[0]" || line != 5 {
		t.Errorf("the first element of b is %s on line %d", path, line)
	}
	if line := d.FieldLine("spec.b[0].c.d"); line != 5 {
		t.Errorf("d is on line %d", line)
	}
	for text, want := range map[string]string{
		"": "", "# nothing\n": "", "null": "", "{}": "", "---\na: 1\n": "",
		"a: [":              "line 1: ",
		"- a":               "line 1: spec: is a list, not a mapping",
		"a: 1\n---\nb: 2\n": "line 2: there is more than one document",
		"a: 1\na: 2":        "line 2: spec.a: key \"a\" is there twice, first on line 1",
	} {
		d := manifest.Spec([]byte(text))
		switch {
		case d.Err == nil && (want != "" || !json.Valid(d.Spec)):
			t.Errorf("%q: %s, want %q", text, d.Spec, want)
		case d.Err != nil && (want == "" || !strings.HasPrefix(d.Err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, d.Err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range goldentest.Inputs(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		lines := strings.Count(string(file), "\n") + 1
		for _, d := range manifest.Parse(file) {
			if d.Line < 1 || d.Line > lines+1 {
				t.Errorf("document on line %d of %d", d.Line, lines)
			}
			d.Text()
			if d.Err != nil {
				if d.Err.Line < 1 || d.Err.Line > lines+1 || d.Err.Reason == "" || d.Err.Advice == "" {
					t.Errorf("error %+v in %d lines", d.Err, lines)
				}
				continue
			}
			if !json.Valid(d.Spec) || !json.Valid(d.Object) {
				t.Errorf("invalid JSON: %s, %s", d.Spec, d.Object)
			}
			if d.Kind == "" || d.APIVersion == "" || d.Metadata.Name == "" {
				t.Errorf("a document without error has no key: %+v", d)
			}
			last := strings.Count(string(d.Spec), "\n") + 1
			for _, l := range []int{1, last/2 + 1, last} {
				path, line := d.Place(l)
				if line < 1 || line > lines+1 || !strings.HasPrefix(path, "spec") {
					t.Errorf("%s on line %d of %d", path, line, lines)
				}
			}
		}
	})
}
