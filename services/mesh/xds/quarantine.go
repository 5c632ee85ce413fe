package xds

import (
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/row"
)

// Replace returns s with the quarantined resources replaced or left out, and with
// what stands in for the quarantined pieces of others, and the names of all of
// them. S must be of type t and made by c.
func (c *Catalog) Replace(t ident.ResourceType, s *Set, with []world.Replacement) (served *Set, names []string) {
	var changes []change
	for i, r := range with {
		if slices.ContainsFunc(with[:i], func(o world.Replacement) bool { return o.Name == r.Name }) {
			continue
		}
		was := s.Find(r.Name)
		if was == nil {
			continue
		}
		if is := c.ReplaceOne(t, was, with); !was.Same(is) {
			changes, names = append(changes, change{r.Name, is}), append(names, r.Name)
		}
	}
	slices.Sort(names)
	served, _ = c.splice(t, s, changes)
	return served, names
}

// ReplaceOne returns what is served in place of a resource: what replaces it as a
// whole, else what is left of it with stand-ins for its quarantined pieces. That
// can be in quarantine as a whole too. It returns nil if nothing is served.
func (c *Catalog) ReplaceOne(t ident.ResourceType, was *Resource, with []world.Replacement) *Resource {
	if r := wholeOf(was, with); r != nil {
		return c.asIs(t, r)
	}
	is := c.WithPieces(t, was, with)
	if r := wholeOf(is, with); r != nil {
		return c.asIs(t, r)
	}
	return is
}

// wholeOf returns the replacement of a whole resource, or nil.
func wholeOf(r *Resource, with []world.Replacement) *world.Replacement {
	i := slices.IndexFunc(with, func(w world.Replacement) bool { return !w.Piece && w.Name == r.Name && w.Sum == r.Sum })
	if i < 0 {
		return nil
	}
	return &with[i]
}

func (c *Catalog) asIs(t ident.ResourceType, r *world.Replacement) *Resource {
	if r.Good == nil {
		return nil
	}
	return c.resource(nameKey{t, r.Name}, []*Encoded{asIs(t, r.Good)}, nil)
}

// WithPieces returns a resource with stand-ins for its quarantined pieces; was
// itself if it has none. The other pieces stay shared with the resources of other
// classes.
func (c *Catalog) WithPieces(t ident.ResourceType, was *Resource, with []world.Replacement) *Resource {
	standIns := StandIns(was.Name, with)
	if len(standIns) == 0 {
		return was
	}
	by := func(s row.Sum) ([]byte, bool) {
		w, ok := standIns[s]
		return w.Value, ok
	}
	var all []*Encoded
	differs := false
	for e := range was.Pieces.All() {
		if value, replaced := e.replace(t, by); replaced {
			differs = true
			e = asIs(t, value)
		}
		all = append(all, e)
	}
	if !differs {
		return was
	}
	return c.resource(nameKey{t, was.Name}, all, was)
}

// replace returns the bytes of e with others in place of some pieces of its row.
func (e *Encoded) replace(t ident.ResourceType, by func(row.Sum) ([]byte, bool)) (value []byte, replaced bool) {
	if row.Alone(t, e.Value) { // most are; their Sum is known
		return by(e.sum())
	}
	return row.Replace(t, e.Value, by)
}

// sum returns the Sum of e as a piece of a row.
func (e *Encoded) sum() row.Sum { return row.Sum(e.Hash[:len(row.Sum{})]) }

// HasPiece reports whether a piece of the row has that Sum.
func (r *Resource) HasPiece(t ident.ResourceType, sum [16]byte) bool {
	return r.Pieces.any(func(e *Encoded) bool {
		if row.Alone(t, e.Value) {
			return e.sum() == sum
		}
		return slices.Contains(row.Pieces(t, e.Value), row.Sum(sum))
	})
}

// StandIns returns what stands in for the quarantined pieces of the resource of a
// name, by their Sums.
func StandIns(name string, with []world.Replacement) map[row.Sum]row.StandIn {
	var standIns map[row.Sum]row.StandIn
	for _, r := range with {
		if _, known := standIns[r.Sum]; r.Piece && r.Name == name && !known {
			if standIns == nil {
				standIns = map[row.Sum]row.StandIn{}
			}
			standIns[r.Sum] = row.StandIn{Value: r.Good, Closed: r.Closed}
		}
	}
	return standIns
}
