package kind_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"meshlog.dev/services/mesh/problem"
)

var update = flag.Bool("update", false, "rewrite what the testdata expects")

// TestValidate reads testdata/*.txtar: the name of the kind in the comment's
// first word, "spec.yaml", and "problems", a line each.
func TestValidate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			k := mustKind(t, strings.Fields(string(ar.Comment))[0])
			for i := 0; i < len(ar.Files); i += 2 {
				spec, err := yaml.YAMLToJSON(ar.Files[i].Data)
				if err != nil {
					t.Fatal(err)
				}
				m, err := k.DecodeJSON(spec)
				if err != nil {
					t.Fatalf("%s: %v", ar.Files[i].Name, err)
				}
				got := problems(k.Validate(m))
				if *update {
					ar.Files[i+1].Data = []byte(got)
				} else if diff := cmp.Diff(string(ar.Files[i+1].Data), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", ar.Files[i].Name, diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func problems(ps []problem.Problem) string {
	var b strings.Builder
	for _, p := range ps {
		warning := ""
		if p.Warning {
			warning = "warning: "
		}
		fmt.Fprintf(&b, "%s%s: %s; %s\n", warning, p.Field, p.Reason, p.Advice)
	}
	return b.String()
}
