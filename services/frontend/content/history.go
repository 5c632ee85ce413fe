package content

import (
	"iter"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds"
)

// Retained is how many versions before the current one can be recognised when
// a resuming client names them.
const Retained = 16

// Past yields what the client would have been served at the versions before
// the current one, newest first, as far as they are retained. It is for a
// client that has a View. What nobody was served then is made now.
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

// want is what was served of a key before, of which somebody needs to know.
type pastContent struct {
	newest  ident.Position // up to which history goes; zero: it is not made yet
	history []revision
}

// fill gives v what was served to a class at its version, one of those in past,
// newest first. What nobody was served is made, for all who came meanwhile at
// once: most of it they have in common.
func (c *Cache) fill(v *View, class index.ProxyClass, past []servedVersion, wants map[key]*pastContent) {
	if c.known(v, class, wants) {
		return
	}
	c.remaking.Lock()
	defer c.remaking.Unlock()
	for !c.known(v, class, wants) { // who had the lock may have known of other versions
		c.remake(past)
	}
}

// known fills v from what is known. If that is not all, the rest is wanted.
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

// remake finds out what was served at the versions in past, which is the newest
// first, of every key that is wanted, as far back as its entry does not say.
func (c *Cache) remake(past []servedVersion) {
	type making struct {
		*pastContent
		before  ident.Position // the first that is not to be made; zero: all are
		through ident.Position // the last that was made
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

// sharing is s with the resources of o in the place of equal ones.
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

// trim forgets what was served before the oldest version that is retained; mu
// is held.
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
