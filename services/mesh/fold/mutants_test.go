//go:build mutants

package fold

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// mutantJudge makes the fold leave out a rule.
type mutantJudge struct {
	testJudge
	rule string
}

func (j mutantJudge) Without() []string { return []string{j.rule} }

// TestWithoutRule checks that each rule changes the output of a scenario that
// names it, and that each rule has a scenario.
func TestWithoutRule(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var covered []string
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sections, err := sectionsOf(archive)
		if err != nil {
			t.Fatal(err)
		}
		rules := strings.Fields(sections["rules"])
		covered = append(covered, rules...)
		for _, rule := range rules {
			t.Run(filepath.Base(file)+"/"+rule, func(t *testing.T) {
				if got := run(t, New("A", mutantJudge{"A", rule}), sections["log"], nil); got == sections["told"] {
					t.Error("the fold does the same without the rule")
				}
			})
		}
	}
	for _, rule := range Mutants {
		if !slices.Contains(covered, rule) {
			t.Errorf("no scenario needs the rule %s", rule)
		}
	}
}

func TestWithoutUnknownRule(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New accepted an unknown rule")
		}
	}()
	New("A", mutantJudge{"A", "fence"})
}
