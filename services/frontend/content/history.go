package content

import (
	"iter"
	"slices"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/store"
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
		remade := map[key][]since{}
		for _, p := range past {
			was := class
			if p.classes != classes {
				was = model.Classify(p.pc, cl.proxy)
			}
			v := View{Version: p.version, Published: p.published}
			for t := range model.ResourceTypes {
				k := key{t, was.Only(t)}
				set := at(remade[k], p.version)
				if set == nil {
					set, remade[k] = c.at(k, p.version, past)
				}
				v.Sets[t] = set
			}
			if !yield(v) {
				return
			}
		}
	}
}

// at is what was served of a key at a version, one of those in past, newest
// first. Where nobody was served it, it is made: then the history comes with it.
func (c *Cache) at(k key, v store.Version, past []point) (*xds.Set, []since) {
	if set, _ := c.known(k, v); set != nil {
		return set, nil
	}
	c.remaking.Lock()
	defer c.remaking.Unlock()
	set, from := c.known(k, v)
	if set != nil {
		return set, nil
	}
	history := c.remake(k, past, from)
	return at(history, v), history
}

// known is what was served of a key at a version; nil: that is not known, and
// since which version it is; zero: not at all.
func (c *Cache) known(k key, v store.Version) (*xds.Set, store.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		return nil, store.Version{}
	}
	return at(e.history, v), e.history[len(e.history)-1].version
}

func at(history []since, v store.Version) *xds.Set {
	for _, h := range history {
		if !v.Less(h.version) {
			return h.set
		}
	}
	return nil
}

// remake finds out what was served of a key at the versions in past, which is
// the newest first, that are before from; zero: at all. Whoever asks next finds
// it in the key's entry.
func (c *Cache) remake(k key, past []point, from store.Version) []since {
	var history []since
	var catalog *xds.Catalog
	for _, p := range slices.Backward(past) {
		switch {
		case !from.IsZero() && !p.version.Less(from):
			continue
		case catalog == nil:
			catalog = xds.NewCatalog(p.pc)
		default:
			catalog.Update(p.pc, p.changed)
		}
		was := serve(catalog, p, k, catalog.Set(k.class, k.t))
		if len(history) == 0 || history[0].set != was.set {
			history = slices.Insert(history, 0, was)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil && e.history[len(e.history)-1].version == from {
		for i := range history {
			history[i].set = sharing(history[i].set, e.set())
		}
		e.history = append(e.history, history...)
	}
	return history
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
		i := slices.IndexFunc(e.history, func(h since) bool { return !oldest.Less(h.version) })
		if i >= 0 && i < len(e.history)-1 {
			clear(e.history[i+1:])
			e.history = e.history[:i+1]
		}
	}
}
