package mcpxds

import (
	"time"

	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// content holds the objects of one answer, compared with those that were known.
type content struct {
	seen    map[name]bool
	changed []resource // those that differ from what was known
	raw     map[name]uint64
	unclear bool // an object has no readable name
	problems
}

// read decodes an answer. Objects that came before as they are now are not decoded again.
func (r *run) read(c *collection, a answer) content {
	out := content{seen: make(map[name]bool, len(a.GetResources())), raw: map[name]uint64{}}
	for _, body := range a.GetResources() {
		res, n, err := r.open(c, body)
		switch {
		case err != nil:
			out.unclear = true
			out.unreadable(err)
			continue
		case out.seen[n]:
			out.twice(n)
			continue
		}
		out.seen[n] = true
		raw := r.raw(body)
		if e, ok := c.entries[n]; ok && e.plain && e.raw == raw {
			continue
		}
		one := r.decode(c, n, res, a.at)
		if one.gone {
			delete(out.seen, n)
			if r.decoder.incremental {
				out.changed = append(out.changed, one)
			}
			continue
		}
		out.raw[n] = raw
		out.changed = append(out.changed, one)
		if one.bad != nil {
			out.undecoded(n, one.bad)
		}
		if one.unknown != "" {
			out.unknown(n, one.unknown)
		}
	}
	return out
}

// apply makes changes of an answer's content.
func (r *run) apply(c *collection, in content, now time.Time) {
	c.unclear = in.unclear || r.decoder.incremental && c.unclear
	for _, one := range in.changed {
		if one.gone {
			r.remove(c, one.name, now)
			continue
		}
		r.put(c, one, entry{raw: in.raw[one.name], sum: one.sum, endpoints: int32(one.endpoints), plain: one.bad == nil && one.unknown == ""})
	}
	if r.decoder.incremental {
		if s := c.of; s.covered && !s.held {
			r.doubt(s.kind.Name).Published(registry.Counts{Services: s.total().Services})
		}
		return
	}
	var missing []name
	for n := range c.entries {
		if !in.seen[n] {
			missing = append(missing, n)
		}
	}
	if c.of.covered && !r.mayRemove(c, missing, now) {
		return
	}
	for _, n := range missing {
		r.remove(c, n, now)
	}
}

// mayRemove reports whether what an answer lacks is gone. If it is in doubt, a new stream
// is the second read (MCP-2).
func (r *run) mayRemove(c *collection, missing []name, now time.Time) bool {
	s := c.of
	if s.unclear() {
		s.held = true
		return false
	}
	d := r.doubt(s.kind.Name)
	if d.Reason() == "" {
		d.Suspect("many objects are gone at once")
		s.doubted = now
	}
	// A later answer of this stream is no second read, whenever it comes.
	whole, again := d.Judge(registry.Counts{Services: s.without(c, missing)}, s.doubted)
	s.held, s.again = !whole, again
	return whole
}

// put stores an object.
func (r *run) put(c *collection, one resource, e entry) {
	old, rank, had := c.of.winner(one.name)
	c.entries[one.name] = e
	if had && rank < c.rank || had && old.sum == e.sum {
		return
	}
	r.pending[key{c.of, one.name}] = one.object
}

// remove removes an object, if c has it.
func (r *run) remove(c *collection, n name, now time.Time) {
	if _, has := c.entries[n]; !has {
		return
	}
	_, rank, _ := c.of.winner(n)
	delete(c.entries, n)
	_, _, still := c.of.winner(n)
	switch k := (key{c.of, n}); {
	case rank < c.rank:
	case still:
		r.over = true // only the hash of the older version's object is known
	case !r.listed:
		delete(r.pending, k)
	default:
		r.pending[k] = watcher.Object{
			Kind: c.of.kind.Name, Namespace: n.namespace, Name: n.name, Delete: true,
			Origin: "xds://" + r.cfg.Address + " " + c.url, Observed: now,
		}
	}
}
