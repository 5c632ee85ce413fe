package content

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// Client is one proxy's place in a Cache. One goroutine uses it; any may call
// Version.
type Client struct {
	cache  *Cache
	proxy  *proxy.Proxy
	payers []string
	wake   func()
	// watching is read and written only by the client's goroutine, so it needs no
	// lock. Others find the client in entry.watchers.
	watching [ident.ResourceTypes]Watch

	// guarded by cache.mu
	located *proxy.Proxy // what the world knows of proxy, at the last View
	known   bool         // located is on a workload, or was
	moves   int          // how often the world may have learned something else of proxy
	seen    int          // moves when located was found
	class   index.ProxyClass
	classes uint64 // servedVersion.classes when class was found, if there are entries
	entries [ident.ResourceTypes]*entry
	viewed  View
	due     bool           // woken, and View not called since
	until   ident.Position // if due: the newest version at which viewed was current
}

// Watch is the names of one type for which a client is woken.
type Watch struct {
	All   bool
	Names *names.Names
}

func (w Watch) any() bool { return w.All || w.Names.Len() > 0 }

// wants reports whether one of the changed names is watched.
func (w Watch) wants(changed []string) bool {
	return w.All || slices.ContainsFunc(changed, w.Names.Has)
}

// Join adds a client for p, which watches nothing yet; Leave removes it. The
// cache calls wake, from any goroutine, when resources that the client watches
// have changed since its last View; perhaps once more after Leave. wake must not
// block, nor call the Client. Payers are those whose shares of the limit the classes
// count for that the client needs first, see Admit.
func (c *Cache) Join(p *proxy.Proxy, wake func(), payers ...string) *Client {
	cl := &Client{cache: c, proxy: p, located: p, wake: wake, payers: payers}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients[cl] = struct{}{}
	for _, in := range inputsOf(p) {
		if c.concerned[in] == nil {
			c.concerned[in] = make(map[*Client]struct{})
		}
		c.concerned[in][cl] = struct{}{}
	}
	return cl
}

// inputsOf returns the inputs that decide what the world knows of p, and which ports its
// workload has.
func inputsOf(p *proxy.Proxy) []index.Input {
	inputs := index.TargetInputs(p)
	if p.Identity != (proxy.Identity{}) {
		inputs = append(inputs, index.WorkloadInput(p.Identity.Namespace, p.Identity.ServiceAccount))
	}
	return inputs
}

// locate returns the client's proxy as pc knows it. A proxy whose workload has gone
// stays what it was: its configuration must not vanish while it drains. mu is not
// held.
func (cl *Client) locate(pc *index.PushContext) (p *proxy.Proxy, known bool) {
	p, standing := pc.Locate(cl.proxy)
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	if standing == index.Located {
		return p, true
	}
	if cl.known {
		return cl.located, true
	}
	return p, false
}

// Proxy returns the client's proxy as the world knew it at the last View. It must
// not be changed.
func (cl *Client) Proxy() *proxy.Proxy {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	return cl.located
}

// Leave ends the client's use of the cache.
func (cl *Client) Leave() {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	delete(cl.cache.clients, cl)
	for _, in := range inputsOf(cl.proxy) {
		if delete(cl.cache.concerned[in], cl); len(cl.cache.concerned[in]) == 0 {
			delete(cl.cache.concerned, in)
		}
	}
	cl.release()
}

// Watch sets the names of type t for which the client is woken. At first it
// watches nothing.
func (cl *Client) Watch(t ident.ResourceType, w Watch) {
	if cl.watching[t] == w {
		return
	}
	c := cl.cache
	c.mu.Lock()
	e := cl.entries[t]
	if e != nil {
		e.unwatch(cl.watching[t], cl)
		e.watch(w, cl)
	}
	cl.watching[t] = w
	// A change before this call did not wake the client.
	late := e != nil && !cl.due && w.any() && cl.viewed.Sets[t] != e.set()
	if late {
		cl.due, cl.until = true, cl.viewed.Version
	}
	c.mu.Unlock()
	if late {
		cl.wake()
	}
}

// View returns what the client's class is served now. It waits for resources to
// be made only if the client is the first one of its class.
func (cl *Client) View() View {
	c := cl.cache
	for {
		c.mu.Lock()
		now, moves := c.current, cl.moves
		if cl.entries[0] != nil && cl.classes == now.classes && cl.seen == moves {
			v := cl.view()
			c.mu.Unlock()
			return v
		}
		c.mu.Unlock()
		p, known := cl.locate(now.pc)
		class := index.Classify(now.pc, p)
		c.mu.Lock()
		if current := cl.moves == moves; current {
			cl.located, cl.known, cl.seen = p, known, moves
		}
		c.mu.Unlock()
		if !cl.enter(now.classes, class) {
			c.makeClass(now.classes, class, false)
		}
	}
}

// view returns what is served now; mu is held.
func (cl *Client) view() View {
	v := View{Version: cl.cache.current.version, Published: cl.cache.current.published}
	for t, e := range cl.entries {
		v.Sets[t], v.Quarantined[t] = e.set(), e.history[0].quarantined
	}
	if v.Until = v.Version; cl.due || cl.viewed.Version.IsZero() {
		v.Until = cl.until
	}
	cl.viewed, cl.due = v, false
	return v
}

// enter puts the client into a class that was found at the given classes
// number. It reports false if the resources of the class must be made first.
func (cl *Client) enter(classes uint64, class index.ProxyClass) bool {
	c := cl.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if classes != c.current.classes {
		return true // View finds the class again
	}
	var entries [ident.ResourceTypes]*entry
	for t := range ident.ResourceTypes {
		if entries[t] = c.entries[key{t, class.Only(t)}]; entries[t] == nil {
			return false
		}
	}
	cl.release()
	for t, e := range entries {
		c.use(e, cl)
		e.watch(cl.watching[t], cl)
	}
	cl.classes, cl.class, cl.entries = classes, class, entries
	return true
}

// makeClass makes the resources of a class, unless the classes number has
// changed; ahead: before a client of the class has come.
func (c *Cache) makeClass(classes uint64, class index.ProxyClass, ahead bool) {
	c.building.Lock()
	defer c.building.Unlock()
	c.mu.Lock()
	current := c.current // until building is released
	before := c.parted
	c.mu.Unlock()
	if current.classes != classes {
		return
	}
	for t := range ident.ResourceTypes {
		k := key{t, class.Only(t)}
		made := c.catalog.Set(k.class, t)
		first := withQuarantine(c.catalog, current, k, made)
		c.mu.Lock()
		if c.entries[k] == nil {
			e := &entry{key: k, made: made, history: []revision{first}, watchers: make(map[Watch]map[*Client]struct{}), ahead: ahead}
			c.entries[k] = e
			c.part(e)
		}
		c.mu.Unlock()
	}
	c.dropOldest(before)
}

// release leaves the client's entries; mu is held.
func (cl *Client) release() {
	for t, e := range cl.entries {
		if e == nil {
			continue
		}
		e.unwatch(cl.watching[t], cl)
		cl.cache.leave(e)
		cl.entries[t] = nil
	}
}

// Class returns the class of the last View.
func (cl *Client) Class() index.ProxyClass {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	return cl.class
}

// Version returns the newest version that changed nothing for the client since
// its last View: the served one, unless the client was woken since.
func (cl *Client) Version() ident.Position {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	if cl.due {
		return cl.viewed.Version
	}
	return cl.cache.current.version
}

func (e *entry) watch(w Watch, cl *Client) {
	if !w.any() {
		return
	}
	clients := e.watchers[w]
	if clients == nil {
		clients = map[*Client]struct{}{}
		e.watchers[w] = clients
	}
	clients[cl] = struct{}{}
}

func (e *entry) unwatch(w Watch, cl *Client) {
	delete(e.watchers[w], cl)
	if len(e.watchers[w]) == 0 {
		delete(e.watchers, w)
	}
}

// View holds the resources that one class is served at one version of the world.
// If content does not change, later Views have the same pointers.
type View struct {
	Version   ident.Position
	Published time.Time // by the leader's clock, for people; zero: unknown
	Sets      [ident.ResourceTypes]*xds.Set
	// Quarantined are the names for which Sets have an earlier resource, or
	// none, because of a quarantine.
	Quarantined [ident.ResourceTypes][]string
	// Until is the newest version at which the client's View before was still
	// all that it should have; zero: there was none.
	Until ident.Position
}
