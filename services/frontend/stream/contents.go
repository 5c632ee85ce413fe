package stream

import (
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// TypeContents is what the client was sent of one type.
type TypeContents struct {
	Type     ident.ResourceType
	Wildcard bool // all names are subscribed
	// Resources are the subscribed and the sent names, sorted.
	Resources []ResourceContents
}

// ResourceContents is what the client was sent of one name.
type ResourceContents struct {
	Name string
	// Sum is the Sum of the resource that was sent last; zero: none, or the
	// empty resource.
	Sum xds.Sum
	// Sent: the client got a response about this name, perhaps that it does not
	// exist. Applied: the client has ACKed it.
	Sent, Applied bool
	// HeldBack: the client rejected the resource that it should have.
	HeldBack bool
	// Quarantined: other clients of the same version rejected the resource, so
	// this one has an earlier resource or none.
	Quarantined bool
	// Lingering: the resource is removed, and stays until the client no longer
	// uses it.
	Lingering bool
}

// Contents returns what the client was sent of each type that it requested, as
// a copy.
func (s *Stream) Contents() []TypeContents {
	var all []TypeContents
	for _, w := range s.watches {
		if w == nil {
			continue
		}
		c := TypeContents{Type: w.t, Wildcard: w.wildcard, Resources: w.ledgerContents()}
		if w.whole {
			c.Resources = w.wholeContents()
		}
		for name := range w.heldBack {
			c.of(name).HeldBack = true
		}
		for _, name := range s.view.Quarantined[w.t] {
			if w.covers(name) {
				c.of(name).Quarantined = true
			}
		}
		for i := range c.Resources {
			r := &c.Resources[i]
			r.Lingering = s.isLingering(w, r.Name)
		}
		all = append(all, c)
	}
	return all
}

// isLingering reports whether the client keeps a removed resource: a lingering
// cluster with its endpoints, or routes and endpoints that nothing replaces.
func (s *Stream) isLingering(w *watch, name string) bool {
	if s.view.Sets[w.t].Find(name) != nil {
		return false
	}
	if s.lingeringResource(w.t, name) != nil {
		return true
	}
	if w.whole {
		return false
	}
	e := w.state(name)
	return e.sent != nil && !s.due(w, &e)
}

// of returns the entry of a name, which it makes if there is none.
func (c *TypeContents) of(name string) *ResourceContents {
	i, ok := findContents(c.Resources, name)
	if !ok {
		c.Resources = slices.Insert(c.Resources, i, ResourceContents{Name: name})
	}
	return &c.Resources[i]
}

func findContents(in []ResourceContents, name string) (int, bool) {
	return slices.BinarySearchFunc(in, name, func(r ResourceContents, name string) int { return strings.Compare(r.Name, name) })
}

// wholeContents returns what was sent of a type whose responses hold
// everything.
func (w *watch) wholeContents() []ResourceContents {
	var contents []ResourceContents
	for _, r := range w.list {
		c := ResourceContents{Name: r.Name, Sum: r.Sum, Sent: true}
		if i, ok := xds.Search(w.ackedList, r.Name); ok {
			c.Applied = w.ackedList[i].Same(r)
		}
		contents = append(contents, c)
	}
	for _, name := range w.names.List() {
		if i, ok := findContents(contents, name); !ok {
			contents = slices.Insert(contents, i, ResourceContents{Name: name, Sent: w.gotAll, Applied: w.applied()})
		}
	}
	return contents
}

// ledgerContents returns what was sent of a type whose responses hold what is
// due.
func (w *watch) ledgerContents() []ResourceContents {
	all := slices.Clone(w.names.List())
	if w.wildcard && w.sent != nil {
		for _, r := range w.sent.Resources {
			all = append(all, r.Name)
		}
	}
	for i := range w.entries {
		all = append(all, w.entries[i].name)
	}
	slices.Sort(all)
	var contents []ResourceContents
	for _, name := range slices.Compact(all) {
		e := w.state(name)
		c := ResourceContents{Name: name, Sent: e.answered, Applied: e.applied && e.acked.Same(e.sent)}
		if e.sent != nil {
			c.Sum = e.sent.Sum
		}
		contents = append(contents, c)
	}
	return contents
}
