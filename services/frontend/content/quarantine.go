package content

import (
	"slices"

	"meshlog.dev/services/mesh/xds"
)

// withQuarantine returns what a key is served at a version: what catalog made,
// with quarantined resources replaced.
func withQuarantine(catalog *xds.Catalog, p servedVersion, k key, made *xds.Set) revision {
	set, names := catalog.Replace(k.t, made, p.pc.Replacements(k.t, k.class.Release(k.t)))
	return revision{p.version, set, names}
}

// released reports whether a quarantine may concern clients of the key.
func (k key) released() bool { return k.class.Release(k.t) != "" }

// changes returns the entries that change with the next version: the catalog
// made something else, or the quarantine replaces something else. building is
// held.
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

// released returns the current revisions of the entries that a quarantine may
// affect.
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
