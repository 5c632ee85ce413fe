package file

import (
	"slices"
	"strings"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// Objects is what a file of that name says, as a Watcher that reads it does: its
// objects, sorted by key, the first of several with one key, and what is wrong
// with the rest. It is pure.
func Objects(name string, data []byte) ([]watcher.Object, []problem.Diagnostic) {
	c := parse(name, data)
	objects := make([]watcher.Object, len(c.entries))
	for i, e := range c.entries {
		objects[i] = e.object
	}
	slices.SortStableFunc(objects, func(a, b watcher.Object) int { return strings.Compare(objectKey(a), objectKey(b)) })
	return slices.CompactFunc(objects, func(a, b watcher.Object) bool { return objectKey(a) == objectKey(b) }), c.problems
}

func objectKey(o watcher.Object) string { return o.Kind + "\x00" + o.Namespace + "\x00" + o.Name }
