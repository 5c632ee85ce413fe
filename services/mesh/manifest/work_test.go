package manifest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"meshlog.dev/services/mesh/manifest"
)

// levels returns fields whose anchors a0, a1 ... are each made of many of the
// level before, as element writes them.
func levels(first string, n, each int, element func(refs string) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "    l0: &a0 %s\n", first)
	for i := 1; i <= n; i++ {
		refs := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), each), ", ")
		fmt.Fprintf(&b, "    l%d: &a%d %s\n", i, i, element(refs))
	}
	return b.String()
}

func merge(refs string) string { return "{<<: [" + refs + "]}" }
func list(refs string) string  { return "[" + refs + "]" }

// A short file cannot cause long work, whatever it repeats (XDS-9).
func TestWorkIsBounded(t *testing.T) {
	const head = "apiVersion: v1\nkind: K\nmetadata: {name: x}\nspec:\n  levels:\n"
	const much = "takes too much work"
	many := func(n int, s string) string { return strings.Repeat(s, n) }
	var keys strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&keys, "k%d: 1, ", i)
	}
	for _, c := range []struct {
		name, file, want string
	}{
		{"merge keys of merge keys", head + levels("{a: 1}", 20, 10, merge), ""},
		{"merge keys of merge keys, others at each level", head + levels("{a: 1}", 20, 10, func(refs string) string {
			return fmt.Sprintf("{b%d: 1, <<: [%s]}", len(refs), refs)
		}), ""},
		{"aliases of aliases", head + levels("[a]", 20, 10, list), much},
		{"aliases of aliases of nothing", head + levels("[]", 20, 10, list), much},
		{"many mappings that merge a large one", head + "    l0: &a0 {" + keys.String() + "}\n    l1: {<<: [" + many(20_000, "{<<: *a0}, ") + "]}\n", much},
		{"many merges of a large mapping", head + "    l0: &a0 {" + keys.String() + "}\n    l1: {<<: [" + many(50_000, "*a0, ") + "]}\n", much},
		{"a list of aliases of a large object", "apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: v1, kind: K, metadata: {name: x}, spec: {" + keys.String() + "}}\n" + many(20_000, "- *a\n"), much},
		{"a long name around many fields", head + "    ? " + many(100_000, "k") + "\n    : [" + many(100_000, "1,") + "]\n", much},
		{"deep lists around many fields", head + "    l: " + many(5000, "[") + many(100_000, "1,") + many(5000, "]") + "\n", much},
		{"a large file", head + "    l: {" + keys.String() + "}\n    m:\n" + many(100_000, "    - {a: 1, b: {c: text}}\n"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			docs := manifest.Parse([]byte(c.file))
			took := time.Since(began)
			var size int
			var failed string
			for _, d := range docs {
				size += len(d.Object)
				if d.Err != nil && failed == "" {
					failed = d.Err.Error()
					if d.Err.Line < 1 || d.Err.Line > strings.Count(c.file, "\n") {
						t.Errorf("the error is on line %d", d.Err.Line)
					}
					d.FieldLine("spec.levels.none") // bounded, too
				}
			}
			t.Logf("%d bytes of file, %d of JSON, %s; %.120s", len(c.file), size, took.Round(time.Microsecond), failed)
			switch {
			case c.want == "" && failed != "":
				t.Errorf("refused: %s", failed)
			case !strings.Contains(failed, c.want):
				t.Errorf("the error is %q, want %q", failed, c.want)
			}
			if limit := 10 * time.Second; took > limit {
				t.Errorf("took %s, the limit is %s", took, limit)
			}
		})
	}
}

// An object that takes too much work takes none from the others of its file
// (XDS-9).
func TestWorkOfOthers(t *testing.T) {
	const plain = "apiVersion: v1\nkind: K\nmetadata: {name: %s}\nspec: {%s}\n"
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, "k%d: {a: [1, 2]}, ", i)
	}
	for _, c := range []struct{ name, file string }{
		{"documents", fmt.Sprintf(plain, "one", "a: 1") +
			"---\napiVersion: v1\nkind: K\nmetadata: {name: bomb}\nspec:\n  levels:\n" + levels("[a]", 20, 10, list) +
			"---\n" + fmt.Sprintf(plain, "two", b.String())},
		{"items", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: K, metadata: {name: one}}\n" +
			"- apiVersion: v1\n  kind: K\n  metadata: {name: bomb}\n  spec:\n" + levels("[a]", 20, 10, list) +
			"- {apiVersion: v1, kind: K, metadata: {name: two}, spec: {" + b.String() + "}}\n"},
	} {
		var got []string
		for _, d := range manifest.Parse([]byte(c.file)) {
			got = append(got, fmt.Sprint(d.Metadata.Name, " ", d.Err == nil))
		}
		if diff := gocmp.Diff([]string{"one true", "bomb false", "two true"}, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}
