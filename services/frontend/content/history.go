package content

import (
	"iter"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds"
)

// Retained is how many earlier versions are recognised when a resuming client
// names them.
const Retained = 16

// pastVersions is the earlier versions that are retained while one version is
// served. An iteration of Past keeps the same ones to its end, and what is made
// for it stays with them, so that it never passes for the content of a version
// that came later.
type pastVersions struct {
	served   ident.Position  // the served version
	versions []servedVersion // retained, all before served; newest first
	// made is the content at these versions, for keys whose entry cannot hold
	// it. Cache.mu protects it.
	made map[key][]revision
}

// next returns the versions before served. The last of them is last, which is
// zero if none was served before.
func (p *pastVersions) next(last servedVersion, served ident.Position) *pastVersions {
	n := &pastVersions{served: served, made: make(map[key][]revision)}
	if !last.version.IsZero() {
		kept := p.versions[:min(len(p.versions), Retained-1)]
		n.versions = append([]servedVersion{last}, kept...)
	}
	return n
}

// Past yields what the client would have been served at the retained earlier
// versions, newest first. The client must have a View. Content that no client
// was served then is made now.
func (cl *Client) Past() iter.Seq[View] {
	return func(yield func(View) bool) {
		c := cl.cache
		c.mu.Lock()
		classes, class, past, located := cl.classes, cl.class, c.past, cl.located
		c.mu.Unlock()
		for _, p := range past.versions {
			was := class
			if p.classes != classes || class.LDS.Client == index.ClientSidecar { // its ports may have been others
				was = index.Classify(p.pc, located)
			}
			if !yield(c.pastView(past, p, was)) {
				return
			}
		}
	}
}

// pastView returns what a class was served at p, one of past. If resources must
// be made, they are made at once for all clients that wait: most of them are
// shared.
func (c *Cache) pastView(past *pastVersions, p servedVersion, class index.ProxyClass) View {
	if v, ok := c.known(past, p, class); ok {
		return v
	}
	c.remaking.Lock()
	defer c.remaking.Unlock()
	for {
		if v, ok := c.known(past, p, class); ok {
			return v
		}
		c.remake(past)
	}
}

// known returns a past View, and whether all of its Sets are made. It adds the
// keys of the others to the wanted ones.
func (c *Cache) known(past *pastVersions, p servedVersion, class index.ProxyClass) (v View, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, all = View{Version: p.version, Published: p.published}, true
	for t := range ident.ResourceTypes {
		k := key{t, class.Only(t)}
		var was revision
		if e := c.entries[k]; e != nil {
			was = at(e.history, p.version)
		}
		if was.set == nil {
			was = at(past.made[k], p.version)
		}
		if was.set == nil {
			all, c.wanted[k] = false, struct{}{}
		}
		v.Sets[t], v.Quarantined[t] = was.set, was.quarantined
	}
	return v, all
}

// making is a key whose earlier content is made.
type making struct {
	key
	// covered is the first version that the key's entry covers: only versions
	// before it are made. Zero: all are made, because there is no entry, or
	// because it begins at a version that came after past.
	covered ident.Position
	history []revision
}

// remake makes the content of the wanted keys at the past versions. A client that
// waits for other past versions adds its keys again, unless their entries cover
// them now.
func (c *Cache) remake(past *pastVersions) {
	c.mu.Lock()
	wanted := make([]making, 0, len(c.wanted))
	for k := range c.wanted {
		r := making{key: k}
		if e := c.entries[k]; e != nil && !past.served.Less(e.oldest()) {
			r.covered = e.oldest()
		}
		wanted = append(wanted, r)
	}
	clear(c.wanted)
	c.mu.Unlock()

	var catalog *xds.Catalog
	for _, p := range slices.Backward(past.versions) {
		if catalog == nil {
			catalog = xds.NewCatalog(p.pc)
		} else {
			catalog.Update(p.pc, p.changed)
		}
		for i := range wanted {
			wanted[i].add(catalog, p)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range wanted {
		e := c.entries[r.key]
		switch {
		case r.covered.IsZero():
			past.made[r.key] = r.history
		case e != nil && e.oldest() == r.covered:
			e.addOlder(r.history)
		default: // the entry was dropped or trimmed: known adds the key again
		}
	}
}

// add makes the content at p, which is newer than what history has.
func (r *making) add(catalog *xds.Catalog, p servedVersion) {
	if !r.covered.IsZero() && !p.version.Less(r.covered) {
		return
	}
	was := withQuarantine(catalog, p, r.key, catalog.Set(r.class, r.t))
	if len(r.history) == 0 || r.history[0].set != was.set || !slices.Equal(r.history[0].quarantined, was.quarantined) {
		r.history = slices.Insert(r.history, 0, was)
	}
}

// addOlder adds what was served before the entry's history begins.
func (e *entry) addOlder(history []revision) {
	for _, r := range history {
		r.set = sharing(r.set, e.set())
		e.history = append(e.history, r)
	}
}

// at returns the revision that was served at v; a zero one if history begins
// later.
func at(history []revision, v ident.Position) revision {
	for _, h := range history {
		if !v.Less(h.version) {
			return h
		}
	}
	return revision{}
}

// sharing returns s with the resources of o in place of equal ones.
func sharing(s, o *xds.Set) *xds.Set {
	if s.Sum == o.Sum {
		return o
	}
	shared := &xds.Set{Resources: slices.Clone(s.Resources), Sum: s.Sum}
	for i, r := range shared.Resources {
		if have := o.Find(r.Name); have.Same(r) {
			shared.Resources[i] = have
		}
	}
	return shared
}

// trim forgets what was served before the oldest retained version; mu is held.
func (c *Cache) trim() {
	retained := c.past.versions
	if len(retained) == 0 {
		return
	}
	oldest := retained[len(retained)-1].version
	for _, e := range c.entries {
		i := slices.IndexFunc(e.history, func(h revision) bool { return !oldest.Less(h.version) })
		if i >= 0 && i < len(e.history)-1 {
			clear(e.history[i+1:])
			e.history = e.history[:i+1]
		}
	}
}
