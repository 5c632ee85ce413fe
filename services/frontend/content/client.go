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

// Client is one proxy's place in a Cache. One goroutine uses it; Version may
// be called by any.
type Client struct {
	cache *Cache
	proxy *proxy.Proxy
	wake  func()

	// guarded by cache.mu
	class    index.ProxyClass
	classes  uint64 // the point's by which class was found, if there are entries
	entries  [ident.ResourceTypes]*entry
	watching [ident.ResourceTypes]watch
	viewed   View
	due      bool           // woken, and View not called since
	until    ident.Position // if due: the newest version at which viewed was right
}

// watch is what a client wants to know of, of one type.
type watch struct {
	all   bool
	names *names.Names
}

func (w watch) any() bool { return w.all || w.names.Len() > 0 }

// wants says whether one of these names matters.
func (w watch) wants(changed []string) bool {
	return w.all || slices.ContainsFunc(changed, w.names.Has)
}

// Join makes a place for p, which is told of nothing yet; Leave gives it back.
func (c *Cache) Join(p *proxy.Proxy) *Client {
	cl := &Client{cache: c, proxy: p, wake: func() {}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients[cl] = struct{}{}
	return cl
}

// Notify has wake called, by any goroutine, when View has something else to
// say about what is watched than when it was last called; perhaps once more
// after Leave. It must not block, nor call the Client. Notify is called before
// Watch.
func (cl *Client) Notify(wake func()) {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	cl.wake = wake
}

// Leave ends the client's use of the cache.
func (cl *Client) Leave() {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	delete(cl.cache.clients, cl)
	cl.release()
}

// Watch says by which names the client is subscribed to type t; nobody is
// woken for others. Nothing is watched at first.
func (cl *Client) Watch(t ident.ResourceType, n *names.Names) { cl.watch(t, watch{names: n}) }

// WatchAll says that the client is subscribed to all resources of type t.
func (cl *Client) WatchAll(t ident.ResourceType) { cl.watch(t, watch{all: true}) }

func (cl *Client) watch(t ident.ResourceType, w watch) {
	c := cl.cache
	c.mu.Lock()
	if cl.watching[t] == w {
		c.mu.Unlock()
		return
	}
	e := cl.entries[t]
	if e != nil {
		e.unwatch(cl.watching[t], cl)
		e.watch(w, cl)
	}
	cl.watching[t] = w
	// What changed before it was watched woke nobody.
	late := e != nil && !cl.due && w.any() && cl.viewed.Sets[t] != e.set()
	if late {
		cl.due, cl.until = true, cl.viewed.Version
	}
	c.mu.Unlock()
	if late {
		cl.wake()
	}
}

// View is what the client's class is served now. It does not wait for a
// version that is being built, unless the client is of a class that nobody was
// of.
func (cl *Client) View() View {
	c := cl.cache
	for {
		c.mu.Lock()
		now := c.current
		if cl.entered() && cl.classes == now.classes {
			v := cl.view()
			c.mu.Unlock()
			return v
		}
		c.mu.Unlock()
		class := index.Classify(now.pc, cl.proxy)
		if !cl.enter(now.classes, class) {
			c.makeClass(now.classes, class)
		}
	}
}

// entered says whether the client is of a class; mu is held.
func (cl *Client) entered() bool { return cl.entries[0] != nil }

// view is what is served now; mu is held.
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

// enter makes the client one of a class, which was found while classes were
// these. It says no if what this class is served has to be made.
func (cl *Client) enter(classes uint64, class index.ProxyClass) bool {
	c := cl.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if classes != c.current.classes {
		return true // the class is found anew
	}
	var entries [ident.ResourceTypes]*entry
	for t := range ident.ResourceTypes {
		if entries[t] = c.entries[key{t, class.Only(t)}]; entries[t] == nil {
			return false
		}
	}
	cl.release()
	for t, e := range entries {
		e.users++
		delete(c.idle, e)
		e.watch(cl.watching[t], cl)
	}
	cl.classes, cl.class, cl.entries = classes, class, entries
	return true
}

// found makes what a class is served, unless classes are others by now.
func (c *Cache) makeClass(classes uint64, class index.ProxyClass) {
	c.building.Lock()
	defer c.building.Unlock()
	c.mu.Lock()
	current := c.current // until building is released
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
			e := &entry{key: k, made: made, history: []revision{first}, watchers: make(map[watch]map[*Client]struct{})}
			c.entries[k] = e
			c.idle[e] = struct{}{}
		}
		c.mu.Unlock()
	}
}

// release gives the entries back; mu is held.
func (cl *Client) release() {
	for t, e := range cl.entries {
		if e == nil {
			continue
		}
		e.unwatch(cl.watching[t], cl)
		if e.users--; e.users == 0 {
			cl.cache.idle[e] = struct{}{}
		}
		cl.entries[t] = nil
	}
}

// Class is the class by which the last View was made.
func (cl *Client) Class() index.ProxyClass {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	return cl.class
}

// Version is the newest version that brought nothing to the client that its
// last View does not have: the current one, unless it was woken since.
func (cl *Client) Version() ident.Position {
	cl.cache.mu.Lock()
	defer cl.cache.mu.Unlock()
	if cl.due {
		return cl.viewed.Version
	}
	return cl.cache.current.version
}

func (e *entry) watch(w watch, cl *Client) {
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

func (e *entry) unwatch(w watch, cl *Client) {
	delete(e.watchers[w], cl)
	if len(e.watchers[w]) == 0 {
		delete(e.watchers, w)
	}
}

// View is what one class is served at one version of the world. While content
// does not change, its Sets are the same pointers in later versions.
type View struct {
	Version   ident.Position
	Published time.Time // by the clock of the leader, for people; zero: not said
	Sets      [ident.ResourceTypes]*xds.Set
	// Quarantined are names of which Sets have something else than the world
	// says, or nothing.
	Quarantined [ident.ResourceTypes][]string
	// Until is the newest version at which the client's View before this one was
	// still all that it should have; zero: there was none.
	Until ident.Position
}
