package stream

import (
	"slices"
	"strings"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// Contents returns what the client was sent of each type that it requested, as
// a copy.
func (s *Stream) Contents() []*reportv1.TypeContent {
	var all []*reportv1.TypeContent
	for _, w := range s.watches {
		if w == nil {
			continue
		}
		c := &reportv1.TypeContent{TypeUrl: w.t.URL(), Wildcard: w.all(), Resources: w.contents()}
		for name := range w.heldBack {
			contentOf(c, name).HeldBack = true
		}
		for _, name := range s.view.Quarantined[w.t] {
			if w.covers(name) {
				contentOf(c, name).Quarantined = true
			}
		}
		for _, r := range c.Resources {
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
	e := w.state(name)
	return e.sent != nil && !s.due(w, &e)
}

// contentOf returns the entry of a name, which it makes if there is none.
func contentOf(c *reportv1.TypeContent, name string) *reportv1.ResourceContent {
	i, ok := slices.BinarySearchFunc(c.GetResources(), name, func(r *reportv1.ResourceContent, name string) int {
		return strings.Compare(r.GetName(), name)
	})
	if !ok {
		c.Resources = slices.Insert(c.Resources, i, &reportv1.ResourceContent{Name: name})
	}
	return c.Resources[i]
}

// contents returns what was sent of a type.
func (w *watch) contents() []*reportv1.ResourceContent {
	all := slices.Collect(w.names.All())
	if w.all() && w.sent != nil {
		for _, r := range w.sent.Resources {
			all = append(all, r.Name)
		}
	}
	for e := range w.entries.all() {
		all = append(all, e.name)
	}
	slices.Sort(all)
	var contents []*reportv1.ResourceContent
	for _, name := range slices.Compact(all) {
		e := w.state(name)
		c := &reportv1.ResourceContent{Name: name, Sent: e.delivery.answered(), Applied: e.hasApplied(e.sent)}
		if e.sent != nil {
			c.Sum = e.sent.Sum[:]
		}
		contents = append(contents, c)
	}
	return contents
}
