// Package goldentest compares a function's outputs for the inputs in a package's
// testdata with the expected outputs there.
package goldentest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// Pairs reads the archives testdata/*.txtar and compares outputs. The sections of an
// archive are pairs: an input, NAME.yaml or NAME.json, and NAME.ext, the output that
// run returns for it. run also gets the archive's comment. An empty output is written
// as "none", so that an empty section always fails. With update, Pairs writes the
// outputs instead of comparing them.
func Pairs(t *testing.T, update bool, ext string, run func(t *testing.T, comment string, input []byte) string) {
	t.Helper()
	for _, file := range files(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want := parse(t, file)
			got, err := fill(want, ext, func(input []byte) string { return run(t, string(want.Comment), input) })
			if err != nil {
				t.Fatal(err)
			}
			if update {
				if err := os.WriteFile(file, txtar.Format(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			for i, f := range got.Files {
				if diff := cmp.Diff(string(want.Files[i].Data), string(f.Data)); diff != "" {
					t.Errorf("%s (-want +got; -update writes it):\n%s", f.Name, diff)
				}
			}
		})
	}
}

// Inputs returns the inputs of all pairs.
func Inputs(t testing.TB) [][]byte {
	t.Helper()
	var all [][]byte
	for _, file := range files(t) {
		for i, f := range parse(t, file).Files {
			if i%2 == 0 {
				all = append(all, f.Data)
			}
		}
	}
	return all
}

func files(t testing.TB) []string {
	t.Helper()
	all, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(all) == 0 {
		t.Fatalf("testdata: %v, %v", all, err)
	}
	return all
}

func parse(t testing.TB, file string) *txtar.Archive {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// fill returns the archive with the current outputs of run.
func fill(a *txtar.Archive, ext string, run func(input []byte) string) (*txtar.Archive, error) {
	if len(a.Files) == 0 || len(a.Files)%2 != 0 {
		return nil, fmt.Errorf("%d sections: want pairs of an input and its output", len(a.Files))
	}
	filled := &txtar.Archive{Comment: a.Comment}
	for i := 0; i < len(a.Files); i += 2 {
		in, out := a.Files[i], a.Files[i+1]
		base, kind := strings.TrimSuffix(in.Name, filepath.Ext(in.Name)), filepath.Ext(in.Name)
		if kind != ".yaml" && kind != ".json" || out.Name != base+"."+ext {
			return nil, fmt.Errorf("sections %q and %q: want NAME.yaml or NAME.json, and NAME.%s", in.Name, out.Name, ext)
		}
		if out.Data = []byte(run(in.Data)); len(out.Data) == 0 {
			out.Data = []byte("none\n")
		}
		filled.Files = append(filled.Files, in, out)
	}
	return filled, nil
}
