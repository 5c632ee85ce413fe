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

// Cache encodes the resources of each class in use once, and shares them
// between all streams. It is safe for concurrent use.
type Cache struct {
	// building is held while resources are made, which may take long: for a new
	// version, or for the first client of a class. It protects catalog. current
	// changes only under both locks.
	building sync.Mutex
	catalog  *xds.Catalog

	// remaking is held while the content of earlier versions is made: by one
	// goroutine at a time, for all that wait for it.
	remaking sync.Mutex

	mu      sync.Mutex // protects what follows; no resource is made under it
	current servedVersion
	past    *pastVersions
	entries map[key]*entry
	idle    map[*entry]struct{} // without clients; dropped with the next version
	wanted  map[key]struct{}    // keys whose earlier content must be made
	clients map[*Client]struct{}
}

// servedVersion is a version of the world that is or was served.
type servedVersion struct {
	version   ident.Position
	published time.Time
	pc        *index.PushContext
	changed   []index.Input // from the version before
	classes   uint64        // differs if proxies may be in other classes
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
	made  *xds.Set // before quarantine replaces anything; only under building
	// history is the Sets of the entry, the current one first, for as long as
	// the entry exists and versions are retained.
	history []revision
	// watchers are the clients of the entry, by the names that they watch.
	watchers map[Watch]map[*Client]struct{}
}

// revision is a Set, and the version in which it replaced the one before or was
// first made.
type revision struct {
	version     ident.Position
	set         *xds.Set
	quarantined []string // names that it has an earlier resource of, or none
}

func (e *entry) set() *xds.Set { return e.history[0].set }

// oldest returns the first version that history covers. It covers every later
// one.
func (e *entry) oldest() ident.Position { return e.history[len(e.history)-1].version }

// New returns a cache of the empty world.
func New() *Cache {
	pc := index.NewPushContext(world.NewWorld())
	return &Cache{
		catalog: xds.NewCatalog(pc),
		current: servedVersion{pc: pc},
		past:    &pastVersions{},
		entries: make(map[key]*entry),
		idle:    make(map[*entry]struct{}),
		wanted:  make(map[key]struct{}),
		clients: make(map[*Client]struct{}),
	}
}

// Update serves pc. Changed are the inputs that differ from the PushContext
// before. Clients that watch what changes are woken.
func (c *Cache) Update(v ident.Position, published time.Time, pc *index.PushContext, changed []index.Input) {
	first := c.Version().IsZero()
	for _, cl := range c.update(servedVersion{version: v, published: published, pc: pc, changed: changed}) {
		cl.wake()
	}
	if first {
		c.prewarm(pc)
	}
}

// prewarm makes the resources of the sidecars and routers that see what every
// namespace sees, before the first one connects: after a restart they all
// connect at once, and other classes share most of these resources. A class
// without clients is dropped with the next version.
func (c *Cache) prewarm(pc *index.PushContext) {
	c.mu.Lock()
	classes := c.current.classes
	c.mu.Unlock()
	for _, t := range []proxy.Type{proxy.Sidecar, proxy.Router} {
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

// change is what an entry holds from a version on.
type change struct {
	*entry
	revision
	names []string // of the resources that changed
}

// swap serves what was built and returns the clients to be woken.
func (c *Cache) swap(next servedVersion, changes []change) []*Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := c.current.pc.SameClasses(next.pc)
	if next.classes = c.current.classes; !same {
		next.classes++
	}
	c.past = c.past.next(c.current, next.version)
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
		for cl := range c.clients { // they may be in other classes now
			tell(cl)
		}
	}
	c.trim()
	return woken
}

// dropIdle drops the classes without clients; building is held.
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

// Version returns the served version; zero: none yet.
func (c *Cache) Version() ident.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.version
}

// Sets returns how many sets are kept: one for each class and type in use.
func (c *Cache) Sets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Parts returns how many parts of resources are kept, shared by all classes. It
// waits while resources are made.
func (c *Cache) Parts() int {
	c.building.Lock()
	defer c.building.Unlock()
	return c.catalog.Size()
}
