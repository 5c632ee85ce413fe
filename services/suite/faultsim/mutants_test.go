//go:build mutants

package faultsim

import (
	"testing"

	"meshlog.dev/services/mesh/fold"
)

func init() { foldRules = fold.Mutants }

// TestWithoutFoldRule checks that the simulation notices that a rule of the fold
// is missing. The scenarios of the fold prove that the other rules are needed.
func TestWithoutFoldRule(t *testing.T) {
	testWithout(t, []needed{
		{"session_fence", "session"},
		{"p_order", "session"},
		{"stage", "all"},
		{"atomic", "rewind"},
		{"partial", "norewind"},
		{"kinds", "kinds"},
		{"overlay_base", "rewind"},
		{"gate", "all"},
	})
}
