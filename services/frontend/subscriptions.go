package frontend

import (
	"fmt"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
)

const (
	// namesShare is how much memory the names that the clients behind an address ask
	// for may take, for each stream that the address may have; absentShare is the same
	// for the answers to names that do not exist.
	namesShare  = 32 << 10
	absentShare = 16 << 10
	// costOfName is what a name takes besides its text, and costOfAbsent the answer
	// to one that does not exist: the streams share all other resources, but an answer
	// of this kind is made for each stream, with the name in it, and kept until the
	// client has acknowledged it.
	costOfName   = 32
	costOfAbsent = 520
	copiesAbsent = 2
)

// subscriptions counts the memory of the names that streams ask for. A set of names
// exists once, however many streams have it; the address that asked for it first
// pays for it. It is safe for concurrent use.
type subscriptions struct {
	mu    sync.Mutex
	sets  map[*names.Names]*heldSet
	bytes int // cost of all
}

type heldSet struct {
	users, cost int
	holder      *holder
}

func newSubscriptions() *subscriptions {
	return &subscriptions{sets: make(map[*names.Names]*heldSet)}
}

// take counts a use of a set, and reports whether the address may have it. It is
// ended by release.
func (s *subscriptions) take(n *names.Names, of *holder) bool {
	if n == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.sets[n]; h != nil {
		h.users++
		return true
	}
	cost := n.Size() + costOfName*n.Len()
	if !of.addNames(cost) {
		return false
	}
	s.sets[n] = &heldSet{1, cost, of}
	s.bytes += cost
	return true
}

func (s *subscriptions) release(n *names.Names) {
	if n == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.sets[n]
	if h.users--; h.users > 0 {
		return
	}
	delete(s.sets, n)
	s.bytes -= h.cost
	h.holder.addNames(-h.cost)
}

// size returns the memory of all sets.
func (s *subscriptions) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// held is what a stream pays for.
type held struct {
	names  [ident.ResourceTypes]*names.Names
	absent int // bytes of the answers to names that do not exist
}

var (
	errNames = fmt.Errorf("the proxies behind this address name too many resources: together the names may take %d KiB for each stream that the address may have; let the proxies import less, or raise --streams-per-address",
		namesShare>>10)
	errAbsent = fmt.Errorf("the proxies behind this address name too many resources that do not exist: together the answers may take %d KiB for each stream that the address may have; correct what the proxies ask for, or raise --streams-per-address",
		absentShare>>10)
)

// afford returns an error if a request names so many resources that do not exist
// that its stream cannot pay for them, before any memory is used for them. Names that
// come twice count twice here, which no client sends. mu is held.
func (c *conn) afford(r *request) error {
	t, known := c.typeOf(r)
	most := (c.held.absent + c.share.address.absentLeft()) / costOfAbsent
	if known && r.Names.Len() > c.state.Served(t)+most {
		return errAbsent
	}
	return nil
}

// typeOf returns the type that a request is for.
func (c *conn) typeOf(r *request) (ident.ResourceType, bool) {
	if c.mode.only != nil {
		return *c.mode.only, true
	}
	return ident.ResourceTypeOf(r.TypeURL)
}

// pay counts what the stream asks for since the last call; mu is held. After an
// error the stream ends. The work follows the names that have changed (XDS-8).
func (c *conn) pay(r *request) error {
	// A client that reconnects may name versions of what does not exist.
	if t, known := c.typeOf(r); known && !c.payAbsent(costOfAbsent*max(0, r.Initial.Len()-c.state.Served(t))) {
		return errAbsent
	}
	for t := range ident.ResourceTypes {
		was, is := c.held.names[t], c.state.Names(t)
		if was == is {
			continue
		}
		if !c.server.subscriptions.take(is, c.share.address) {
			return errNames
		}
		c.held.names[t] = is
		c.server.subscriptions.release(was)
		if t != ident.EDS && t != ident.RDS {
			continue // an absent name is told by its name alone
		}
		absent := 0
		names.Differ(was, is, func(name string, is bool) {
			cost := costOfAbsent + copiesAbsent*len(name)
			switch {
			case c.state.Serves(t, name):
			case is:
				absent += cost
			default:
				absent -= cost
			}
		})
		if !c.payAbsent(absent) {
			return errAbsent
		}
	}
	return nil
}

// payAbsent adds bytes of answers to absent names, which may be negative, and reports
// whether the address may have them. A name may have come or gone since the stream
// began to pay for it.
func (c *conn) payAbsent(bytes int) bool {
	bytes = max(bytes, -c.held.absent)
	if !c.share.address.addAbsent(bytes) {
		return false
	}
	c.held.absent += bytes
	return true
}

// payNothing ends what pay began; mu is held.
func (c *conn) payNothing() {
	for _, n := range c.held.names {
		c.server.subscriptions.release(n)
	}
	c.payAbsent(-c.held.absent)
	c.held = held{}
}
