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

// Past yields what the client would have been served at the retained earlier
// versions, newest first. The client must have a View. Content that no client
// was served then is made now.
func (cl *Client) Past() iter.Seq[View] {
	return func(yield func(View) bool) {
		c := cl.cache
		c.mu.Lock()
		classes, class, past := cl.classes, cl.class, slices.Clone(c.past)
		c.mu.Unlock()
		wants := map[key]*pastContent{}
		for _, p := range past {
			was := class
			if p.classes != classes {
				was = index.Classify(p.pc, cl.proxy)
			}
			v := View{Version: p.version, Published: p.published}
			c.fill(&v, was, past, wants)
			if !yield(v) {
				return
			}
		}
	}
}

// pastContent is what a key was served at earlier versions.
type pastContent struct {
	newest  ident.Position // the newest version in history; zero: not made yet
	history []revision
}

// fill sets v to what a class was served at its version, one of past. If
// resources must be made, they are made at once for all clients that wait: most
// of them are shared.
func (c *Cache) fill(v *View, class index.ProxyClass, past []servedVersion, wants map[key]*pastContent) {
	if c.known(v, class, wants) {
		return
	}
	c.remaking.Lock()
	defer c.remaking.Unlock()
	for !c.known(v, class, wants) { // the goroutine before may have made other versions
		c.remake(past)
	}
}

// known fills v with what is known, and adds the rest to the wanted keys.
func (c *Cache) known(v *View, class index.ProxyClass, wants map[key]*pastContent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := true
	for t := range ident.ResourceTypes {
		k := key{t, class.Only(t)}
		if e := c.entries[k]; e != nil {
			v.Sets[t] = at(e.history, v.Version)
		}
		if w := wants[k]; v.Sets[t] == nil && w != nil && !w.newest.Less(v.Version) {
			v.Sets[t] = at(w.history, v.Version)
		}
		if v.Sets[t] != nil {
			continue
		}
		all = false
		if c.pastWanted[k] == nil {
			c.pastWanted[k] = new(pastContent)
		}
		wants[k] = c.pastWanted[k]
	}
	return all
}

// remake makes, for every wanted key, what was served at the versions in past
// (newest first) that its entry does not cover.
func (c *Cache) remake(past []servedVersion) {
	type making struct {
		*pastContent
		before  ident.Position // make only versions before it; zero: all
		through ident.Position // the newest that was made
	}
	wanted := map[key]*making{}
	c.mu.Lock()
	for k, w := range c.pastWanted {
		m := &making{pastContent: w}
		if e := c.entries[k]; e != nil {
			m.before = e.history[len(e.history)-1].version
		}
		wanted[k] = m
	}
	clear(c.pastWanted)
	c.mu.Unlock()

	histories := make(map[key][]revision, len(wanted))
	var catalog *xds.Catalog
	for _, p := range slices.Backward(past) {
		if catalog == nil {
			catalog = xds.NewCatalog(p.pc)
		} else {
			catalog.Update(p.pc, p.changed)
		}
		for k, m := range wanted {
			if !m.before.IsZero() && !p.version.Less(m.before) {
				continue
			}
			m.through = p.version
			was := withQuarantine(catalog, p, k, catalog.Set(k.class, k.t))
			if h := histories[k]; len(h) == 0 || h[0].set != was.set {
				histories[k] = slices.Insert(h, 0, was)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, m := range wanted {
		history := histories[k]
		if e := c.entries[k]; e != nil && e.history[len(e.history)-1].version == m.before {
			for i := range history {
				history[i].set = sharing(history[i].set, e.set())
			}
			e.history = append(e.history, history...)
		}
		m.newest, m.history = m.through, history
	}
}

func at(history []revision, v ident.Position) *xds.Set {
	for _, h := range history {
		if !v.Less(h.version) {
			return h.set
		}
	}
	return nil
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
	if len(c.past) == 0 {
		return
	}
	oldest := c.past[len(c.past)-1].version
	for _, e := range c.entries {
		i := slices.IndexFunc(e.history, func(h revision) bool { return !oldest.Less(h.version) })
		if i >= 0 && i < len(e.history)-1 {
			clear(e.history[i+1:])
			e.history = e.history[:i+1]
		}
	}
}
