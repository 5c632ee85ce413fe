package goldentest

import (
	"testing"

	"golang.org/x/tools/txtar"
)

// Pairs fails for an empty output, an empty expected output, and sections that
// are not pairs.
func TestEmptyOutput(t *testing.T) {
	nothing := func([]byte) string { return "" }
	for _, text := range []string{"", "what came out once\n"} {
		got, err := fill(txtar.Parse([]byte("-- a.yaml --\nx: 1\n-- a.want --\n"+text)), "want", nothing)
		if err != nil {
			t.Fatal(err)
		}
		if out := string(got.Files[1].Data); out == text || out != "none\n" {
			t.Errorf("with %q: got %q, want none", text, out)
		}
	}
	for _, text := range []string{
		"", "only a comment\n", "-- a.yaml --\n", "-- a.yaml --\n-- b.want --\n", "-- a.yaml --\n-- a.wamt --\n",
		"-- a.want --\n-- a.yaml --\n", "-- a.txt --\n-- a.want --\n", "-- a.yaml --\n-- a.want --\n-- b.yaml --\n",
	} {
		if got, err := fill(txtar.Parse([]byte(text)), "want", nothing); err == nil {
			t.Errorf("%q passes with %q", text, txtar.Format(got))
		}
	}
}
