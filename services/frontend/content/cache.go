package content

import (
	"iter"
	"slices"
	"sync"
	"time"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/store"
)

// retained is how many versions before the current one can be recognised when
// a resuming client names them.
const retained = 16

// Cache is what is served to all classes in use. It is safe for concurrent
// use.
type Cache struct {
	mu      sync.Mutex
	current point
	past    []point // newest first
	sets    map[key]*entry
}

// point is a version of the world.
type point struct {
	version   store.Version
	published time.Time
	pc        *model.PushContext
}

// key is the class of one type.
type key struct {
	t     model.ResourceType
	class model.ProxyClass // Only(t)
}

// entry is the content of one key; it lives while clients are of its class.
type entry struct {
	key    key
	set    *xds.Set
	inputs []model.Input
	users  int
}

// New returns a cache of the empty world.
func New() *Cache {
	return &Cache{
		current: point{pc: model.NewPushContext(model.NewWorld())},
		sets:    make(map[key]*entry),
	}
}

// Update makes pc what is served. Changed are the inputs that differ from the
// PushContext before it.
func (c *Cache) Update(v store.Version, published time.Time, pc *model.PushContext, changed []model.Input) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.current.version.IsZero() {
		c.past = slices.Insert(c.past, 0, c.current)
		if len(c.past) > retained {
			c.past[retained] = point{}
			c.past = c.past[:retained]
		}
	}
	c.current = point{v, published, pc}
	touched := make(map[model.Input]bool, len(changed))
	for _, in := range changed {
		touched[in] = true
	}
	for k, e := range c.sets {
		if slices.ContainsFunc(e.inputs, func(in model.Input) bool { return touched[in] }) {
			e.set, e.inputs = c.generate(pc, k, e.set)
		}
	}
}

// generate makes the content of k. Where it is equal to old it is old.
func (c *Cache) generate(pc *model.PushContext, k key, old *xds.Set) (*xds.Set, []model.Input) {
	result := xds.Generate(pc, k.class, k.t)
	set := result.Set
	if old != nil && old.Sum == set.Sum {
		set = old
	}
	return set, result.Inputs
}

// Version is the version that is served; zero: none yet.
func (c *Cache) Version() store.Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.version
}

// Sets is how many sets are kept: one for each class and type in use.
func (c *Cache) Sets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sets)
}

// Client is one proxy's place in a Cache. One goroutine uses it; Current may
// be called by any.
type Client struct {
	cache *Cache
	proxy *model.Proxy

	// guarded by cache.mu
	seen    *model.PushContext // by which class was found
	class   model.ProxyClass
	entries [model.ResourceTypes]*entry
}

// Join makes a place for p; Leave gives it back.
func (c *Cache) Join(p *model.Proxy) *Client {
	return &Client{cache: c, proxy: p}
}

// Leave ends the client's use of the cache.
func (cl *Client) Leave() {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	cl.release()
	cl.seen = nil
}

// View is what the client's class is served now.
func (cl *Client) View() View {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	cl.classify()
	v := View{Version: cl.cache.current.version, Published: cl.cache.current.published}
	for t := range model.ResourceTypes {
		v.Sets[t] = cl.entries[t].set
	}
	return v
}

// Class is the class by which the client is served.
func (cl *Client) Class() model.ProxyClass {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	cl.classify()
	return cl.class
}

// Past yields what the client would have been served at the versions before
// the current one, newest first, as far as they are retained.
func (cl *Client) Past() iter.Seq[View] {
	return func(yield func(View) bool) {
		cl.cache.mu.Lock()
		past := slices.Clone(cl.cache.past)
		cl.cache.mu.Unlock()
		for _, p := range past {
			if !yield(cl.at(p)) {
				return
			}
		}
	}
}

func (cl *Client) at(p point) View {
	class := model.Classify(p.pc, cl.proxy)
	v := View{Version: p.version, Published: p.published}
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	for t := range model.ResourceTypes {
		v.Sets[t], _ = cl.cache.generate(p.pc, key{t, class.Only(t)}, nil)
	}
	return v
}

// classify finds the client's class anew where it may be another; mu is held.
func (cl *Client) classify() {
	c := cl.cache
	pc := c.current.pc
	if cl.seen != nil && cl.seen.SameSelectors(pc) {
		cl.seen = pc
		return
	}
	cl.seen = pc
	cl.class = model.Classify(pc, cl.proxy)
	var entries [model.ResourceTypes]*entry
	for t := range model.ResourceTypes {
		k := key{t, cl.class.Only(t)}
		e := c.sets[k]
		if e == nil {
			e = &entry{key: k}
			e.set, e.inputs = c.generate(pc, k, nil)
			c.sets[k] = e
		}
		e.users++
		entries[t] = e
	}
	cl.release()
	cl.entries = entries
}

// release gives the entries back; mu is held.
func (cl *Client) release() {
	for t, e := range cl.entries {
		if e == nil {
			continue
		}
		if e.users--; e.users == 0 {
			delete(cl.cache.sets, e.key)
		}
		cl.entries[t] = nil
	}
}
