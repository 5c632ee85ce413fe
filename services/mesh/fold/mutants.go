//go:build mutants

package fold

import (
	"fmt"
	"slices"
)

// Mutants are the names of the rules of rules.go. In a build with the tag "mutants", a fold does without those that its
// judge names by a method Without() []string.
var Mutants = []string{
	"session_fence", "p_order", "gap", "stage", "digest", "partial", "kinds", "stranger", "atomic", "last_good", "overlay_base", "once", "gate",
}

// variant is the rules that a fold does without.
type variant struct{ without []string }

func variantOf(j Judge) variant {
	m, ok := j.(interface{ Without() []string })
	if !ok {
		return variant{}
	}
	for _, name := range m.Without() {
		if !slices.Contains(Mutants, name) {
			panic(fmt.Sprintf("fold: no rule is called %q", name))
		}
	}
	return variant{m.Without()}
}

func (v variant) has(rule string) bool { return !slices.Contains(v.without, rule) }
