package index

import (
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
)

// transition is the step from one PushContext to its successor: what the edits
// share, and where they record changes.
type transition struct {
	*settings
	inputs   map[Input]struct{}
	problems *table.Edit[about, []problem.Diagnostic]
	// other: proxies may be in other classes than before.
	other bool
}

// about is the subject of problems, so that they can be replaced.
type about struct{ what, namespace, name string }

func hashAbout(a about) uint64 { return table.HashStrings(a.what, a.namespace, a.name) }

// changed records that an input differs.
func (t *transition) changed(in Input) { t.inputs[in] = struct{}{} }

// problem replaces the problems of a subject.
func (t *transition) problem(a about, ds []problem.Diagnostic) {
	keep(t.problems, a, ds, len(ds) > 0)
}

// keep sets a key to a value, or removes it if the value is not kept.
func keep[K comparable, V any](e *table.Edit[K, V], k K, v V, kept bool) {
	if kept {
		e.Set(k, v)
	} else {
		e.Remove(k)
	}
}

// reclassify records whether proxies may be in other classes.
func (t *transition) reclassify(other bool) { t.other = t.other || other }
