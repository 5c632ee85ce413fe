//go:build mutants

package fold

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// mutantJudge has the fold do without a rule.
type mutantJudge struct {
	testJudge
	rule string
}

func (j mutantJudge) Without() []string { return []string{j.rule} }

// TestWithoutRule holds that each rule changes what the fold does with the log
// of a scenario that names it, and that each rule has a scenario.
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
			t.Error("an unknown rule was taken away")
		}
	}()
	New("A", mutantJudge{"A", "fence"})
}
