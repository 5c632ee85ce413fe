package command

import (
	"slices"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
)

// Scene makes what proxies are served of one content after another, as ServedOf does, and makes
// only what differs from the content before: of a large mesh, ServedOf takes seconds. It keeps
// the last content. It is safe for concurrent use; the zero Scene is ready.
type Scene struct {
	mu      sync.Mutex
	rows    *store.Snapshot // nil: none yet
	world   *world.World
	pc      *index.PushContext
	catalog *xds.Catalog
	classes []index.ProxyClass // in the catalog; the one that was used last is last
}

// sceneClasses is how many classes stay in the catalog of a Scene.
const sceneClasses = 8

// Served makes the resources that a frontend would serve to a proxy of a content.
func (s *Scene) Served(content *store.Snapshot, to *proxy.Proxy) (v Served, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.move(content); err != nil {
		s.rows = nil
		return v, err
	}
	class := index.Classify(s.pc, to)
	s.use(class)
	v.TrustDomain = s.pc.Read().TrustDomains()[0]
	for t := range ident.ResourceTypes {
		made := s.catalog.Set(class.Only(t), t)
		v.Sets[t], v.Quarantined[t] = s.catalog.Replace(t, made, s.pc.Replacements(t, class.Release(t)))
	}
	return v, nil
}

// move makes content the one that the catalog is of.
func (s *Scene) move(content *store.Snapshot) (err error) {
	if s.rows == content && content != nil {
		return nil
	}
	if s.rows == nil {
		if s.world, err = ledger.World(content); err != nil {
			return err
		}
		s.pc = index.NewPushContext(s.world)
		s.rows, s.catalog, s.classes = content, xds.NewCatalog(s.pc), nil
		return nil
	}
	d := store.Diff(s.rows, content)
	rows := make([]world.RowChange, 0, len(d.Put)+len(d.Remove))
	for _, r := range d.Put {
		rows = append(rows, world.RowChange{Row: r.Key, Value: r.Value})
	}
	for _, r := range d.Remove {
		rows = append(rows, world.RowChange{Row: r})
	}
	w, keys, err := s.world.Apply(world.Change{Rows: rows})
	if err != nil {
		return err
	}
	pc, inputs := s.pc.Next(w, keys)
	s.catalog.Update(pc, inputs)
	s.rows, s.world, s.pc = content, w, pc
	return nil
}

// use makes a class the one that was used last. The one that was not used for longest leaves the
// catalog if there are too many.
func (s *Scene) use(class index.ProxyClass) {
	if i := slices.Index(s.classes, class); i >= 0 {
		s.classes = slices.Delete(s.classes, i, i+1)
	}
	if s.classes = append(s.classes, class); len(s.classes) > sceneClasses {
		for t := range ident.ResourceTypes {
			s.catalog.Drop(s.classes[0].Only(t), t)
		}
		s.classes = slices.Delete(s.classes, 0, 1)
	}
}
