package xds

import (
	"crypto/sha256"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/piece"
)

// Replace returns s with the quarantined resources replaced or left out, and
// their names. S must be of type t and made by c.
func (c *Catalog) Replace(t ident.ResourceType, s *Set, with []world.Replacement) (served *Set, names []string) {
	changes, names := replaced(t, s, with)
	if len(names) == 0 {
		return s, nil
	}
	for i, ch := range changes {
		if ch.resource == nil {
			continue
		}
		k := typeSum{t, ch.resource.Sum}
		if have := c.pool.resources.get(k); have != nil {
			changes[i].resource = have
		} else {
			c.pool.resources.put(k, ch.resource)
		}
	}
	served, _ = c.splice(t, s, changes)
	return served, names
}

// replaced returns the replacements for s, and their names.
func replaced(t ident.ResourceType, s *Set, with []world.Replacement) (changes []change, names []string) {
	for _, r := range with {
		was := s.Find(r.Name)
		if was == nil || was.Sum != r.Sum {
			continue
		}
		ch := change{name: r.Name}
		if r.Good != nil {
			// The content was applied by clients, so it can be read. If this build
			// cannot read it, it is served all the same, without facts about its order.
			facts, _ := piece.Inspect(t, r.Good)
			all := PiecesOf(&Encoded{Value: r.Good, Hash: sha256.Sum256(r.Good), Facts: facts})
			ch.resource = newResource(t, r.Name, all.sum(r.Name), all)
		}
		changes, names = append(changes, ch), append(names, r.Name)
	}
	return changes, names
}
