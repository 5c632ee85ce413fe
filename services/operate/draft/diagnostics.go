package draft

import (
	"slices"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
)

// Diagnostics returns problems as they are printed, the worst first.
func Diagnostics(problems []problem.Diagnostic) []command.Diagnostic {
	var all []*snapshotv1.Diagnostic
	for _, p := range slices.SortedStableFunc(slices.Values(problems), func(a, b problem.Diagnostic) int { return int(b.Severity) - int(a.Severity) }) {
		all = append(all, p.Proto())
	}
	return command.Diagnostics(all, "")
}
