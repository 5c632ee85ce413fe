package content

import (
	"slices"

	"meshlog.dev/services/mesh/xds"
)

// serve is what is served of a key at a point where made is what catalog makes
// of it.
func withQuarantine(catalog *xds.Catalog, p servedVersion, k key, made *xds.Set) revision {
	set, names := catalog.Replace(k.t, made, p.pc.Replacements(k.t, k.class.Release(k.t)))
	return revision{p.version, set, names}
}

// released says whether something may be in quarantine for who is of the key.
func (k key) released() bool { return k.class.Release(k.t) != "" }

// changes is which entries have something else at the next point: the catalog
// makes it, or something else is replaced in what it makes. building is held.
func (c *Cache) changes(next servedVersion, made []xds.Change) []change {
	var changes []change
	for _, m := range made {
		e := c.entries[key{m.Type, *m.Class}]
		if e.made = m.Set; !e.key.released() {
			changes = append(changes, change{e, revision{next.version, m.Set, nil}, m.Names})
		}
	}
	for e, was := range c.released() {
		now := withQuarantine(c.catalog, next, e.key, e.made)
		if now.set != was.set || !slices.Equal(now.quarantined, was.quarantined) {
			changes = append(changes, change{e, now, xds.Changed(was.set, now.set)})
		}
	}
	return changes
}

// released is what entries are served for which something may be in quarantine.
func (c *Cache) released() map[*entry]revision {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all map[*entry]revision
	for k, e := range c.entries {
		if !k.released() {
			continue
		}
		if all == nil {
			all = map[*entry]revision{}
		}
		all[e] = e.history[0]
	}
	return all
}
