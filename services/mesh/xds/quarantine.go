package xds

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
)

// Replace returns s with the quarantined resources replaced or left out, and
// their names. S must be of type t and made by c.
func (c *Catalog) Replace(t ident.ResourceType, s *Set, with []world.Replacement) (served *Set, names []string) {
	var changes []change
	for _, r := range with {
		was := s.Find(r.Name)
		if was == nil || was.Sum != r.Sum {
			continue
		}
		ch := change{name: r.Name}
		if r.Good != nil {
			ch.resource = c.resource(nameKey{t, r.Name}, []*Encoded{asIs(t, r.Good)}, nil)
		}
		changes, names = append(changes, ch), append(names, r.Name)
	}
	served, _ = c.splice(t, s, changes)
	return served, names
}
