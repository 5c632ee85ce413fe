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
	// Resources are what is subscribed, or was sent, sorted by name.
	Resources []ResourceContents
}

// ResourceContents is what the client was sent of one name.
type ResourceContents struct {
	Name string
	// Sum is that of what was sent last; zero: nothing, or the empty resource.
	Sum xds.Sum
	// Sent says that something was sent, if only that there is nothing; Applied
	// that the client has it.
	Sent, Applied bool
	// HeldBack says that the client rejected what it should have.
	HeldBack bool
	// Quarantined says that the client has something else than the world says,
	// or nothing, because others like it rejected that.
	Quarantined bool
	// Lingering says that it is gone, and stays until the client does not use
	// it any more.
	Lingering bool
}

// Contents is what the client was sent, of each type for which it asked. It is
// a copy, made when it is asked for.
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
		for name := range w.holds {
			c.of(name).HeldBack = true
		}
		for _, name := range s.view.Quarantined[w.t] {
			if w.covers(name) {
				c.of(name).Quarantined = true
			}
		}
		for i := range c.Resources {
			r := &c.Resources[i]
			r.Lingering = s.lingers(w, r.Name)
		}
		all = append(all, c)
	}
	return all
}

// lingers says whether the client keeps what is gone: a held cluster with its
// endpoints, or routes and endpoints in whose place nothing is sent.
func (s *Stream) lingers(w *watch, name string) bool {
	if s.view.Sets[w.t].Find(name) != nil {
		return false
	}
	if s.heldResource(w.t, name) != nil {
		return true
	}
	if w.whole {
		return false
	}
	e := w.state(name)
	return e.sent != nil && !s.due(w, &e)
}

// of is what is said of a name, from now on.
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

// wholeContents is what was sent of a type whose responses hold everything.
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
			contents = slices.Insert(contents, i, ResourceContents{Name: name, Sent: w.everGot, Applied: w.applied()})
		}
	}
	return contents
}

// ledgerContents is what was sent of a type whose responses hold what is due.
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
