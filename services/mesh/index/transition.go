package index

import (
	"iter"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
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

// change is an object before and after the step; either may be nil.
type change struct {
	ident.Key
	was, is *world.Object
}

// versions yields the object before and after the step, as far as it is there,
// and whether it is the one after.
func (c change) versions() iter.Seq2[*world.Object, bool] { return versions(c.was, c.is) }

// about is the subject of problems, so that they can be replaced.
type about struct{ what, namespace, name string }

// changed records that an input differs.
func (t *transition) changed(in Input) { t.inputs[in] = struct{}{} }

// problem replaces the problems of a subject.
func (t *transition) problem(a about, ds []problem.Diagnostic) {
	t.problems.Keep(a, ds, len(ds) > 0)
}

// reclassify records whether proxies may be in other classes.
func (t *transition) reclassify(other bool) { t.other = t.other || other }

// counted returns the changed counter and the names that came into it or left
// it. Classes depend on which names count.
func (t *transition) counted(e *table.CounterEdit) (c table.Counter, moved []string) {
	c, moved = e.Done()
	t.reclassify(len(moved) > 0)
	return c, moved
}

// versions yields an object before and after a change, as far as there is one,
// and whether it is the one after.
func versions[T any](was, is *T) iter.Seq2[*T, bool] {
	return func(yield func(*T, bool) bool) {
		if (was == nil || yield(was, false)) && is != nil {
			yield(is, true)
		}
	}
}
