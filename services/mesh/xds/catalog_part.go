package xds

import (
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

type (
	partKey struct {
		t      ident.ResourceType
		client index.Client // the checks of pieces differ by it
		part   piece.Part
	}
	// part is a Part with its pieces.
	part struct {
		key      partKey
		id       uint32
		pieces   []given
		inputs   []index.Input
		problems []problem.Diagnostic
		lists    int // with this part
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
		g.alone = c.resource(g.of, []*Encoded{g.Encoded}, nil)
	}
	return g.alone
}

// resource returns the resource that the pieces make; before is the name's last
// resource, or nil.
func (c *Catalog) resource(of *name, all []*Encoded, before *Resource) *Resource {
	var others Pieces
	if before != nil {
		others = before.Pieces
	}
	pieces := piecesOf(all, others, func(some []*Encoded) *block {
		if len(some) == 1 {
			return newBlock(some)
		}
		k := typeHash{of.t, hashOf(some)}
		b := c.pool.blocks.get(k)
		if b == nil {
			b = newBlock(some)
			c.pool.blocks.put(k, b)
		}
		return b
	})
	k := typeSum{of.t, pieces.sum(of.text)}
	r := c.pool.resources.get(k)
	if r == nil {
		r = newResource(of.t, of.text, k.sum, pieces)
		c.pool.resources.put(k, r)
	}
	return r
}

// make makes a part, for the first time or again. It returns the pieces from
// before if they changed.
func (c *Catalog) make(p *part) (before []given, differs bool) {
	out := makePart(c.pc, p.key)
	c.reads(p.inputs, out.inputs,
		func(r *readers) { delete(r.parts, p) },
		func(r *readers) { r.parts[p] = struct{}{} })
	p.inputs = out.inputs
	c.problems.replace(p.problems, out.problems)
	p.problems = out.problems
	if out.failed {
		return nil, false // keep its last pieces
	}
	if p.gives(out.pieces) {
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
	if len(p.pieces) != len(pieces) {
		return false
	}
	for i, m := range pieces {
		if g := &p.pieces[i]; g.of.text != m.name || g.partial != m.partial || g.Hash != m.Hash {
			return false
		}
	}
	return true
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
		p = &part{key: k, id: e.ids.take()}
		e.parts[k] = p
		e.stale[p] = struct{}{}
	}
	return p
}

// dropPart removes a part that no list has.
func (c *Catalog) dropPart(p *part) {
	delete(c.parts, p.key)
	c.reads(p.inputs, nil, func(r *readers) { delete(r.parts, p) }, nil)
	c.problems.replace(p.problems, nil)
	c.forget(p, p.pieces)
	c.ids.give(p.id)
}

// ids assigns small numbers to parts.
type ids struct {
	next uint32
	free []uint32
}

func (s *ids) take() uint32 {
	if n := len(s.free); n > 0 {
		id := s.free[n-1]
		s.free = s.free[:n-1]
		return id
	}
	s.next++
	return s.next - 1
}

func (s *ids) give(id uint32) { s.free = append(s.free, id) }

// bits is a set of ids.
type bits []uint64

func (b bits) has(id uint32) bool { return int(id/64) < len(b) && b[id/64]>>(id%64)&1 == 1 }

func (b *bits) add(id uint32) {
	for int(id/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[id/64] |= 1 << (id % 64)
}
