//go:build mutants

package fold

import (
	"fmt"
	"slices"
)

// Mutants are the names of the rules in rules.go. In a build with the tag
// "mutants", a fold leaves out the rules that its judge's method Without() []string
// returns.
var Mutants = []string{
	"session_fence", "p_order", "gap", "stage", "digest", "partial", "kinds", "stranger", "atomic", "last_good", "overlay_base", "operator", "once", "gate", "pin", "rollout",
}

// variant holds the rules that a fold leaves out.
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
