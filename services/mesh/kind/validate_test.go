package kind_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/testkit/goldentest"
	"meshlog.dev/services/mesh/problem"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestValidate reads pairs of a spec and its problems, a line each. The first word
// of the archive's comment is the kind.
func TestValidate(t *testing.T) {
	goldentest.Pairs(t, *update, "problems", func(t *testing.T, comment string, text []byte) string {
		k := mustKind(t, strings.Fields(comment)[0])
		spec, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := k.DecodeJSON(spec)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return problems(k.Validate("", m))
	})
}

func problems(ps []problem.Diagnostic) string {
	var b strings.Builder
	for _, p := range ps {
		warning := ""
		if p.Severity == problem.Warning {
			warning = "warning: "
		}
		fmt.Fprintf(&b, "%s%s: %s; %s\n", warning, p.Field, p.Reason, p.Advice)
	}
	return b.String()
}
