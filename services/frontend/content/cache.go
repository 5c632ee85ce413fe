package content

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
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
	idle    map[*entry]struct{} // without clients
	parted  uint64              // how many entries have lost their last client
	most    int                 // entries; 0: no limit
	shares  map[string]int      // entries with clients, by those who needed them first
	wanted  map[key]struct{}    // keys whose earlier content must be made
	clients map[*Client]struct{}
	// concerned are the clients by the inputs that decide what the
	// world knows of them.
	concerned map[index.Input]map[*Client]struct{}
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
	// payers are those of its first client, for as long as it has clients.
	payers []string
	// parted is the number of the entry among those that lost their last client,
	// and swept whether Sweep has seen it since.
	parted uint64
	swept  bool
	// ahead: it was made before a client of its class came.
	ahead bool
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

// maxIdle is how many entries without clients are kept between versions.
const maxIdle = 256

// New returns a cache of the empty world. It makes room for no client whose class
// would need more than most entries in all, one for each class and type; 0: no
// limit.
func New(most int) *Cache {
	pc := index.NewPushContext(world.NewWorld())
	return &Cache{
		catalog:   xds.NewCatalog(pc),
		current:   servedVersion{pc: pc},
		most:      most,
		past:      &pastVersions{},
		entries:   make(map[key]*entry),
		idle:      make(map[*entry]struct{}),
		shares:    make(map[string]int),
		wanted:    make(map[key]struct{}),
		clients:   make(map[*Client]struct{}),
		concerned: make(map[index.Input]map[*Client]struct{}),
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
		c.makeClass(classes, index.Classify(pc, &proxy.Proxy{Type: t}), true)
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
	for _, in := range next.changed {
		in.View = "" // what a pinned proxy's view of it says concerns it too
		for cl := range c.concerned[in] {
			cl.moves++
			tell(cl)
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
func (c *Cache) dropIdle() { c.drop(func(*entry) bool { return true }) }

// Sweep drops the classes that have had no client since the Sweep before. A client
// that reconnects soon still finds its class.
func (c *Cache) Sweep() {
	c.building.Lock()
	defer c.building.Unlock()
	c.drop(func(e *entry) bool {
		was := e.swept
		e.swept = true
		return was && !e.ahead
	})
}

// dropOldest drops the classes that have been without clients for the longest time,
// so that few are left, and no more entries than the limit if that is possible.
// Entries that were idle before that number of them are concerned. building is
// held.
func (c *Cache) dropOldest(before uint64) {
	c.mu.Lock()
	var parted []uint64
	for e := range c.idle {
		if e.parted <= before && !e.ahead {
			parted = append(parted, e.parted)
		}
	}
	excess := len(parted) - maxIdle
	if c.most > 0 {
		excess = max(excess, len(c.entries)-c.most)
	}
	c.mu.Unlock()
	if excess <= 0 || len(parted) == 0 {
		return
	}
	slices.Sort(parted)
	last := parted[min(excess, len(parted))-1]
	c.drop(func(e *entry) bool { return e.parted <= last && !e.ahead })
}

// drop drops the idle entries for which is is true; building is held.
func (c *Cache) drop(is func(*entry) bool) {
	c.mu.Lock()
	var dropped []*entry
	for e := range c.idle {
		if is(e) {
			dropped = append(dropped, e)
			delete(c.idle, e)
			delete(c.entries, e.key)
		}
	}
	c.mu.Unlock()
	for _, e := range dropped {
		c.catalog.Drop(e.key.class, e.key.t)
	}
}

// part makes an entry idle; mu is held.
func (c *Cache) part(e *entry) {
	c.parted++
	e.parted, e.swept = c.parted, false
	c.idle[e] = struct{}{}
}

// Reasons why a client is not admitted.
var (
	ErrStranger = errors.New("the world has workloads of the proxy's service account, and the proxy is on none of them")
	ErrFull     = errors.New("the resources of the proxy's class would be more than are kept")
)

// ShareError is why a client is not admitted that needs entries which nobody has, if
// one of its payers has a tenth of the limit already.
type ShareError struct {
	Payer string
	Most  int // entries
}

func (e *ShareError) Error() string {
	return fmt.Sprintf("%s has needed %d classes first, its share", e.Payer, e.Most)
}

// shareOfPayer is the part of the limit that one payer may take.
const shareOfPayer = 10

// Admit returns nil if a new client for p may Join, else ErrStranger, ErrFull or a
// ShareError: the resources of its class are not made yet, and there are as many as
// the limit or its payers' shares of it allow, not counting those without clients. A
// client that has joined may enter any class, so that a new version cannot end its
// stream.
func (c *Cache) Admit(p *proxy.Proxy, payers ...string) error {
	c.mu.Lock()
	most, pc := c.most, c.current.pc
	c.mu.Unlock()
	p, standing := pc.Locate(p)
	if standing == index.Stranger {
		return ErrStranger
	}
	if most == 0 {
		return nil
	}
	class := index.Classify(pc, p)
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := 0
	for t := range ident.ResourceTypes {
		if e := c.entries[key{t, class.Only(t)}]; e == nil || e.users == 0 {
			missing++
		}
	}
	if missing == 0 {
		return nil
	}
	share := max(most/shareOfPayer, int(ident.ResourceTypes)) // room for one class at least
	for _, payer := range payers {
		if c.shares[payer]+missing > share {
			return &ShareError{payer, share}
		}
	}
	if len(c.entries)-len(c.idle)+missing > most {
		return ErrFull
	}
	return nil
}

// use adds a client to an entry; mu is held.
func (c *Cache) use(e *entry, cl *Client) {
	e.ahead = false
	delete(c.idle, e)
	if e.users++; e.users > 1 {
		return
	}
	e.payers = cl.payers
	for _, payer := range e.payers {
		c.shares[payer]++
	}
}

// leave removes a client from an entry; mu is held.
func (c *Cache) leave(e *entry) {
	if e.users--; e.users > 0 {
		return
	}
	for _, payer := range e.payers {
		if c.shares[payer]--; c.shares[payer] == 0 {
			delete(c.shares, payer)
		}
	}
	e.payers = nil
	c.part(e)
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

// Keys returns the private keys that the Secrets of the served version name.
func (c *Cache) Keys() map[piece.Key]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	named := make(map[piece.Key]bool)
	for k, e := range c.entries {
		if k.t != ident.SDS {
			continue
		}
		for _, r := range e.set().Resources {
			if key := r.Key(); key != nil {
				named[*key] = true
			}
		}
	}
	return named
}

// Parts returns how many parts of resources are kept, shared by all classes. It
// waits while resources are made.
func (c *Cache) Parts() int {
	c.building.Lock()
	defer c.building.Unlock()
	return c.catalog.Size()
}
