package why

import (
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// scene is what one proxy is served of one type, and a way to find out what it would
// be served of another world.
type scene struct {
	world   *world.World
	pc      *index.PushContext
	proxy   *proxy.Proxy
	class   index.ProxyClass
	t       ident.ResourceType
	catalog *xds.Catalog
	set     *xds.Set
	docs    documents
	tried   int // worlds
}

func newScene(w *world.World, p *proxy.Proxy, t ident.ResourceType) *scene {
	s := &scene{world: w, pc: index.NewPushContext(w), proxy: p, t: t, docs: documents{}}
	s.class = index.Classify(s.pc, p).Only(t)
	s.catalog = xds.NewCatalog(s.pc)
	s.set = s.catalog.Set(s.class, t)
	return s
}

// read returns the sorted inputs that the change of some objects would change.
func (s *scene) read(rows []world.RowChange) ([]index.Input, error) {
	w, keys, err := s.world.Apply(world.Change{Rows: rows})
	if err != nil {
		return nil, fmt.Errorf("try another world: %w", err)
	}
	_, inputs, err := next(s.pc, w, keys)
	return inputs, err
}

// errUnread says that a world cannot be indexed: one of its objects has a value that
// validation would have refused.
var errUnread = errors.New("the index cannot read the world")

// next returns the successor of pc for a world, and the inputs that differ.
func next(pc *index.PushContext, w *world.World, keys []ident.Key) (to *index.PushContext, inputs []index.Input, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errUnread, v)
		}
	}()
	to, inputs = pc.Next(w, keys)
	return to, inputs, nil
}

// try returns the resource of a name in a world in which some rows are others; nil:
// it has none.
func (s *scene) try(name string, rows []world.RowChange) (*xds.Resource, error) {
	s.tried++
	w, keys, err := s.world.Apply(world.Change{Rows: rows})
	if err != nil {
		return nil, fmt.Errorf("try another world: %w", err)
	}
	pc, inputs, err := next(s.pc, w, keys)
	if err != nil {
		return nil, err
	}
	class := s.class
	if !s.pc.SameClasses(pc) {
		class = index.Classify(pc, s.proxy).Only(s.t)
	}
	s.catalog.Update(pc, inputs)
	found := s.catalog.Set(class, s.t).Find(name)
	if class != s.class {
		s.catalog.Drop(class, s.t)
	}
	s.catalog.Update(s.pc, inputs)
	return found, nil
}

// tryProxy returns the resource of a name for another proxy.
func (s *scene) tryProxy(name string, p *proxy.Proxy) *xds.Resource {
	s.tried++
	class := index.Classify(s.pc, p).Only(s.t)
	found := s.catalog.Set(class, s.t).Find(name)
	if class != s.class {
		s.catalog.Drop(class, s.t)
	}
	return found
}

// overlap reports whether two sorted lists of inputs have one in common.
func overlap(a, b []index.Input) bool {
	for _, in := range a {
		if _, found := slices.BinarySearchFunc(b, in, index.Input.Compare); found {
			return true
		}
	}
	return false
}
