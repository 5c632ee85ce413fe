package past

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// String returns the change as one line.
func (f FieldChange) String() string {
	text := func(b json.RawMessage) string {
		if b == nil {
			return "(none)"
		}
		return string(b)
	}
	return fmt.Sprintf("%s: %s -> %s", f.Path, text(f.Before), text(f.After))
}

func TestDiffDocuments(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		want       []string
	}{
		{"equal, however written", `{"a": 1, "b": [1, 2]}`, `{"b":[1,2],"a":1}`, nil},
		{"a field", `{"a":{"b":1}}`, `{"a":{"b":2}}`, []string{"spec.a.b: 1 -> 2"}},
		{"a field more, a field less", `{"a":1}`, `{"b":{"c":true}}`, []string{"spec.a: 1 -> (none)", `spec.b: (none) -> {"c":true}`}},
		{"large numbers stay as they are", `{"a":90071992547409930}`, `{"a":90071992547409931}`, []string{"spec.a: 90071992547409930 -> 90071992547409931"}},
		{"another type", `{"a":[1]}`, `{"a":{"b":1}}`, []string{`spec.a: [1] -> {"b":1}`}},
		{"weights in a list", `{"r":[{"d":"v1","w":90},{"d":"v2","w":10}]}`, `{"r":[{"d":"v1","w":50},{"d":"v2","w":50}]}`,
			[]string{"spec.r[0].w: 90 -> 50", "spec.r[1].w: 10 -> 50"}},
		{"first of a list removed", `{"e":["a","b","c"]}`, `{"e":["b","c"]}`, []string{`spec.e[0]: "a" -> (none)`}},
		{"in the middle", `{"e":["a","b","c"]}`, `{"e":["a","x","y","c"]}`, []string{`spec.e[1]: "b" -> "x"`, `spec.e[2]: (none) -> "y"`}},
		{"two places", `{"e":[1,2,3,4,5]}`, `{"e":[2,3,6,4,5,7]}`, []string{"spec.e[0]: 1 -> (none)", "spec.e[2]: (none) -> 6", "spec.e[5]: (none) -> 7"}},
		{"no escapes for people", `{"a":"x"}`, `{"a":"<&>"}`, []string{`spec.a: "x" -> "<&>"`}},
	} {
		var got []string
		for _, f := range diffDocuments("spec", []byte(c.a), []byte(c.b), nil) {
			got = append(got, f.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestCompare(t *testing.T) {
	one, two := json.RawMessage(`{"a":1}`), json.RawMessage(`{"a":2}`)
	for _, c := range []struct {
		before, after json.RawMessage
		err           error
		want          ObjectChange
	}{
		{nil, one, nil, ObjectChange{Change: "added", After: one}},
		{one, nil, nil, ObjectChange{Change: "removed", Before: one}},
		{one, two, nil, ObjectChange{Change: "changed", Fields: []FieldChange{{"spec.a", json.RawMessage("1"), json.RawMessage("2")}}}},
		{nil, one, errors.New("no such kind"), ObjectChange{Change: "added", Unreadable: "no such kind"}},
		{one, two, errors.New("no such kind"), ObjectChange{Change: "changed", Unreadable: "no such kind"}},
	} {
		var got ObjectChange
		got.Compare("spec", c.before, c.after, c.err)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s to %s (-want +got):\n%s", c.before, c.after, diff)
		}
	}
}
