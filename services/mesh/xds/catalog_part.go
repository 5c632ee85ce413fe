package xds

import (
	mathbits "math/bits"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
)

type (
	partKey struct {
		t      ident.ResourceType
		client index.Client // the checks of pieces differ by it
		large  bool         // clients take large regular expressions
		pin    string       // the view of the world that it is made in
		part   piece.Part
	}
	// part is a Part with its pieces.
	part struct {
		reading
		key    partKey
		id     uint32
		pieces []given
		lists  int // with this part

		applied map[index.PatchID]struct{} // as in output
	}
	// given is a piece that a part contributes to the resource of a name.
	given struct {
		of      *name
		partial bool
		*Encoded
		alone *Resource // made of this piece alone; nil: not needed yet
	}

	nameKey struct {
		t    ident.ResourceType
		text string
	}
	// name of resources of one type.
	name struct {
		nameKey
		givers []*part // one entry per piece, in any order
	}
)

// alone returns the resource that this piece alone makes.
func (c *Catalog) alone(g *given) *Resource {
	if g.alone == nil {
		g.alone = c.resource(g.of.nameKey, []*Encoded{g.Encoded}, nil)
	}
	return g.alone
}

// resource returns the resource that the pieces make; before is the name's last
// resource, or nil.
func (c *Catalog) resource(of nameKey, all []*Encoded, before *Resource) *Resource {
	var others Pieces
	if before != nil {
		others = before.Pieces
	}
	pieces := piecesOf(all, others, func(some []*Encoded) *block {
		if len(some) == 1 {
			return newBlock(some)
		}
		return c.pool.blocks.of(typeHash{of.t, hashOf(some)}, func() *block { return newBlock(some) })
	})
	sum := pieces.sum(of.text)
	return c.pool.resources.of(typeSum{of.t, sum}, func() *Resource { return newResource(of.t, of.text, sum, pieces) })
}

// take takes what was made of a part, for the first time or again. It returns the pieces
// from before if they changed.
func (c *Catalog) take(p *part, out output) (before []given, differs bool) {
	c.reread(&p.reading, out.inputs, out.problems)
	c.matched(p, out.applied)
	if out.failed || p.gives(out.pieces) { // a part that failed keeps its last pieces
		return nil, false
	}
	before = p.pieces
	p.pieces = make([]given, len(out.pieces))
	for i, m := range out.pieces {
		n := c.name(nameKey{p.key.t, m.name})
		n.givers = append(n.givers, p)
		p.pieces[i] = given{of: n, partial: m.partial, Encoded: m.Encoded}
	}
	c.forget(p, before)
	return before, true
}

// gives reports whether p has these pieces already.
func (p *part) gives(pieces []made) bool {
	return slices.EqualFunc(p.pieces, pieces, func(g given, m made) bool {
		return g.of.text == m.name && g.partial == m.partial && g.Hash == m.Hash
	})
}

// name returns a name, which it adds if it is new.
func (c *Catalog) name(k nameKey) *name {
	n := c.names[k]
	if n == nil {
		n = &name{nameKey: k}
		c.names[k] = n
	}
	return n
}

// givenIn returns the name's piece from the parts of a list, or nil; more: there
// are several.
func (n *name) givenIn(l *list) (g *given, more bool) {
	for _, p := range n.givers {
		if !l.has.has(p.id) {
			continue
		}
		if g != nil {
			return nil, true
		}
		i := slices.IndexFunc(p.pieces, func(g given) bool { return g.of == n })
		g = &p.pieces[i]
	}
	return g, false
}

// forget removes the pieces of a part from their names.
func (c *Catalog) forget(p *part, pieces []given) {
	for i := range pieces {
		n := pieces[i].of
		at, last := slices.Index(n.givers, p), len(n.givers)-1
		n.givers[at], n.givers[last] = n.givers[last], nil
		if n.givers = n.givers[:last]; last == 0 {
			c.unnamed = append(c.unnamed, n)
		}
	}
}

// sweepNames removes the names without pieces.
func (c *Catalog) sweepNames() {
	for _, n := range c.unnamed {
		if len(n.givers) == 0 {
			delete(c.names, n.nameKey)
		}
	}
	c.unnamed = nil
}

// part returns a part; a new one has still to be made.
func (e *edit) part(k partKey) *part {
	p := e.parts[k]
	if p == nil {
		p = &part{key: k}
		p.by = p
		e.ids.take(p)
		e.parts[k] = p
		e.stale[p] = struct{}{}
	}
	return p
}

// dropPart removes a part that no list has.
func (c *Catalog) dropPart(p *part) {
	delete(c.parts, p.key)
	c.reread(&p.reading, nil, nil)
	c.matched(p, nil)
	c.forget(p, p.pieces)
	c.ids.give(p.id)
}

// ids assigns small numbers to parts.
type ids struct {
	parts []*part // by id; nil: free
	free  []uint32
}

func (s *ids) take(p *part) {
	if last := len(s.free) - 1; last >= 0 {
		p.id, s.free = s.free[last], s.free[:last]
	} else {
		p.id, s.parts = uint32(len(s.parts)), append(s.parts, nil)
	}
	s.parts[p.id] = p
}

func (s *ids) give(id uint32) {
	s.parts[id] = nil
	s.free = append(s.free, id)
}

// bits is a set of ids.
type bits []uint64

func (b bits) has(id uint32) bool { return int(id/64) < len(b) && b[id/64]>>(id%64)&1 == 1 }

func (b *bits) add(id uint32) {
	for int(id/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[id/64] |= 1 << (id % 64)
}

// all iterates over the ids in ascending order.
func (b bits) all(yield func(uint32) bool) {
	for i, word := range b {
		for ; word != 0; word &= word - 1 {
			if !yield(uint32(64*i + mathbits.TrailingZeros64(word))) {
				return
			}
		}
	}
}
