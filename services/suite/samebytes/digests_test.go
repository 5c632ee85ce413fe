package samebytes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// listing holds the digests of the resources of a type that a node is served.
type listing struct {
	version string            // on the wire
	digests map[string]string // by name
	sum     string            // over names and digests
}

var nothing = &listing{version: strings.Repeat("0", 16), sum: digest()}

func newListing(s served) *listing {
	l := &listing{version: s.version.String()[:16], digests: make(map[string]string, len(s.resources))}
	var all strings.Builder
	for _, r := range s.resources {
		l.digests[r.Name] = s.digest(r)
		fmt.Fprintf(&all, "%s %s\n", l.digests[r.Name], r.Name)
	}
	l.sum = digest([]byte(all.String()))
	return l
}

func (l *listing) same(o *listing) bool { return l.sum == o.sum && l.version == o.version }

// writer writes the digests of a mesh, version by version.
type writer struct {
	mesh     *mesh
	clients  []*client
	current  [][]*listing // by client and type
	root     string
	problems map[string]int
	kept     map[any]*listing // of the version before, by the set that they are made from

	// summary has a line for each node and type; lines has a line for each
	// resource too.
	summary, lines strings.Builder
}

func newWriter(m *mesh, nodes []node) (*writer, error) {
	w := &writer{mesh: m}
	for _, n := range nodes {
		c, err := m.join(n)
		if err != nil {
			return nil, err
		}
		w.clients = append(w.clients, c)
		w.current = append(w.current, slices.Repeat([]*listing{nothing}, len(typeNames)))
	}
	return w, nil
}

// version writes what changed since the version before.
func (w *writer) version() error {
	var summary, lines strings.Builder
	both := func(format string, args ...any) {
		fmt.Fprintf(&summary, format, args...)
		fmt.Fprintf(&lines, format, args...)
	}
	problems := w.mesh.problems()
	for _, p := range slices.Sorted(maps.Keys(problems)) {
		if problems[p] != w.problems[p] {
			both("! %d %s\n", problems[p], p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(w.problems)) {
		if problems[p] == 0 {
			both("! 0 %s\n", p)
		}
	}
	w.problems = problems
	kept := map[any]*listing{}
	before := w.current
	w.current = nil
	for i, c := range w.clients {
		var now []*listing
		for t, s := range w.mesh.served(c) {
			l := w.kept[s.set]
			if l == nil {
				l = kept[s.set]
			}
			if l == nil || s.set == nil {
				l = newListing(s)
			}
			kept[s.set] = l
			now = append(now, l)
			if l == before[i][t] || l.same(before[i][t]) {
				continue
			}
			if other := slices.IndexFunc(w.current, func(o []*listing) bool { return o[t].same(l) }); other >= 0 {
				both("> %s %s = %s\n", c.node.name, typeNames[t], w.clients[other].node.name)
				continue
			}
			both("> %s %s %d %s %s\n", c.node.name, typeNames[t], len(l.digests), l.version, l.sum)
			writeChanges(&lines, before[i][t], l)
		}
		w.current = append(w.current, now)
	}
	w.kept = kept
	if root := w.mesh.root(); summary.Len() > 0 || root != w.root {
		w.root = root
		head := fmt.Sprintf("@ %s %s\n", w.mesh.position(), root)
		w.summary.WriteString(head + summary.String())
		w.lines.WriteString(head + lines.String())
	}
	return nil
}

func writeChanges(b *strings.Builder, before, now *listing) {
	for _, name := range slices.Sorted(maps.Keys(now.digests)) {
		if now.digests[name] != before.digests[name] {
			fmt.Fprintf(b, "+ %s %s\n", now.digests[name], name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.digests)) {
		if _, ok := now.digests[name]; !ok {
			fmt.Fprintf(b, "- %s\n", name)
		}
	}
}
