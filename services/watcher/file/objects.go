package file

import (
	"slices"
	"strings"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// Objects returns the objects of a file as a Watcher reads them, sorted by key,
// and the problems of its documents. If several objects have one key it returns
// the first. It is pure.
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
