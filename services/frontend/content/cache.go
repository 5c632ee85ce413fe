package content

import (
	"slices"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// Cache is what is served to all classes in use. It is safe for concurrent
// use.
type Cache struct {
	// building is held by who makes content, which may take long: a new
	// version, or a class that nobody was of. It protects catalog, and what is
	// current changes only under both locks.
	building sync.Mutex
	catalog  *xds.Catalog

	// remaking is held by who finds out what was served before: one at a time,
	// for all who have come by then.
	remaking sync.Mutex

	mu         sync.Mutex // protects what follows; nothing is made under it
	current    servedVersion
	past       []servedVersion // newest first
	entries    map[key]*entry
	idle       map[*entry]struct{}  // without users; they go with the next version
	pastWanted map[key]*pastContent // of which what was served before is to be found out
	clients    map[*Client]struct{}
}

// point is a version of the world.
type servedVersion struct {
	version   ident.Position
	published time.Time
	pc        *index.PushContext
	changed   []index.Input // from the point before
	classes   uint64        // another number where proxies may be of other classes
}

// key is the class of one type.
type key struct {
	t     ident.ResourceType
	class index.ProxyClass // Only(t)
}

// entry is the content of one key.
type entry struct {
	key   key
	users int
	made  *xds.Set // before anything was replaced in it; only under building
	// history is its Sets, the current one first, as far back as the entry is
	// there and versions are retained.
	history []revision
	// watchers are its users by what they want to know of.
	watchers map[watch]map[*Client]struct{}
}

// since is a Set, and the version in which it took its place or at which it
// was first made.
type revision struct {
	version     ident.Position
	set         *xds.Set
	quarantined []string // names that it has something else of, or nothing
}

func (e *entry) set() *xds.Set { return e.history[0].set }

// New returns a cache of the empty world.
func New() *Cache {
	pc := index.NewPushContext(world.NewWorld())
	return &Cache{
		catalog:    xds.NewCatalog(pc),
		current:    servedVersion{pc: pc},
		entries:    make(map[key]*entry),
		idle:       make(map[*entry]struct{}),
		pastWanted: make(map[key]*pastContent),
		clients:    make(map[*Client]struct{}),
	}
}

// Update makes pc what is served. Changed are the inputs that differ from the
// PushContext before it. Clients to whom it matters are woken.
func (c *Cache) Update(v ident.Position, published time.Time, pc *index.PushContext, changed []index.Input) {
	first := c.Version().IsZero()
	for _, cl := range c.update(servedVersion{version: v, published: published, pc: pc, changed: changed}) {
		cl.wake()
	}
	if first {
		c.prewarm(pc)
	}
}

// foresee makes what sidecars and routers are served that see what everybody
// sees, before the first of them comes: after a restart they all come at once,
// and other classes share most of it. What nobody has come for goes with the
// next version.
func (c *Cache) prewarm(pc *index.PushContext) {
	c.mu.Lock()
	classes := c.current.classes
	c.mu.Unlock()
	for _, t := range []proxy.ProxyType{proxy.Sidecar, proxy.Router} {
		c.makeClass(classes, index.Classify(pc, &proxy.Proxy{Type: t}))
	}
}

func (c *Cache) update(next servedVersion) []*Client {
	c.building.Lock()
	defer c.building.Unlock()
	c.dropIdle()
	made := c.catalog.Update(next.pc, next.changed)
	return c.swap(next, c.changes(next, made))
}

// change is what an entry has from a version on.
type change struct {
	*entry
	revision
	names []string // of the resources that differ from those before
}

// swap makes what was built what is served, and returns who is to be told.
func (c *Cache) swap(next servedVersion, changes []change) []*Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := c.current.pc.SameClasses(next.pc)
	if next.classes = c.current.classes; !same {
		next.classes++
	}
	if !c.current.version.IsZero() {
		c.past = slices.Insert(c.past, 0, c.current)
		if len(c.past) > Retained {
			c.past[Retained] = servedVersion{}
			c.past = c.past[:Retained]
		}
	}
	before := c.current.version
	c.current = next
	var woken []*Client
	tell := func(cl *Client) {
		if !cl.due {
			cl.due, cl.until = true, before
			woken = append(woken, cl)
		}
	}
	for _, ch := range changes {
		ch.history = slices.Insert(ch.history, 0, ch.revision)
		for w, clients := range ch.watchers {
			if !w.wants(ch.names) {
				continue
			}
			for cl := range clients {
				tell(cl)
			}
		}
	}
	if !same {
		for cl := range c.clients { // who may be of other classes now
			tell(cl)
		}
	}
	c.trim()
	return woken
}

// dropIdle forgets the classes that nobody is of; building is held.
func (c *Cache) dropIdle() {
	c.mu.Lock()
	idle := c.idle
	c.idle = make(map[*entry]struct{})
	for e := range idle {
		delete(c.entries, e.key)
	}
	c.mu.Unlock()
	for e := range idle {
		c.catalog.Drop(e.key.class, e.key.t)
	}
}

// Version is the version that is served; zero: none yet.
func (c *Cache) Version() ident.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.version
}

// Sets is how many sets are kept: one for each class and type in use at the
// current version.
func (c *Cache) Sets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Parts is how many parts of resources are kept, once for all classes. It
// waits for what is being made.
func (c *Cache) Parts() int {
	c.building.Lock()
	defer c.building.Unlock()
	return c.catalog.Size()
}
