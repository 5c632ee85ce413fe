package frontend

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"weak"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

// secrets puts private keys into the Secrets that streams send. A key is asked for when
// a proxy whose class has the Secret names it, or is about to get clusters or listeners
// that do (SDS-9), and dropped when no served version names it any more (KEY-8).
type secrets struct {
	store *keys.Store   // nil: no Secret has a key
	poke  chan struct{} // asked has changed
	log   *loglimit.Logger
	audit func(*auditv1.Record) // nil: nothing takes records
	// named returns the keys that the served version names, of the classes in use.
	named func() map[piece.Key]bool

	mu    sync.Mutex
	asked map[keys.Key]*askedKey
	kept  int // calls of keep
	// whole are the Secrets with keys. Streams that send one at the same time share it; it
	// is not kept for longer, because it repeats the key and the certificates.
	whole map[xds.Sum]wholeSecret
}

// askedKey is a key that streams have asked for.
type askedKey struct {
	wanted bool               // the store knows
	by     map[*conn][]string // the names of the Secrets
}

func (a *askedKey) ask(c *conn, name string) {
	if !slices.Contains(a.by[c], name) {
		a.by[c] = append(a.by[c], name)
	}
}

type wholeSecret struct {
	key      keys.Key
	resource weak.Pointer[xds.Resource]
}

func newSecrets(store *keys.Store, named func() map[piece.Key]bool, log *loglimit.Logger, audit func(*auditv1.Record)) *secrets {
	return &secrets{
		store: store, named: named, log: log, audit: audit, poke: make(chan struct{}, 1),
		asked: make(map[keys.Key]*askedKey), whole: make(map[xds.Sum]wholeSecret),
	}
}

func keyOf(k *piece.Key) keys.Key {
	return keys.Key{Shard: k.Object.Shard(), Namespace: k.Object.Namespace, Name: k.Object.Name, Field: k.Field, Sum: k.Sum}
}

// of returns a Secret with its key, and where the key is. The stream is woken when that
// changes.
func (s *secrets) of(c *conn, r *xds.Resource) (*xds.Resource, stream.KeyState) {
	if s.store == nil {
		return nil, stream.KeyGone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if whole := s.whole[r.Sum].resource.Value(); whole != nil {
		return whole, stream.KeyHere
	}
	k := keyOf(r.Key())
	a := s.asked[k]
	if a == nil {
		a = &askedKey{by: make(map[*conn][]string)}
		s.asked[k] = a
		s.wake()
	}
	a.ask(c, r.Name)
	pem, state := s.store.Get(k)
	defer clear(pem)
	switch {
	case state == keys.Here:
		whole, err := r.WithKey(pem)
		if err != nil {
			return nil, stream.KeyGone // the version has a Secret that this build cannot read
		}
		s.whole[r.Sum] = wholeSecret{k, weak.Make(whole)}
		return whole, stream.KeyHere
	case state == keys.Coming, !a.wanted:
		return nil, stream.KeyComing
	}
	return nil, stream.KeyGone
}

// wake makes run look at asked.
func (s *secrets) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// run tells the store which keys are wanted, until ctx is done.
func (s *secrets) run(ctx context.Context) error {
	for s.store != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.poke:
		}
		s.tell()
	}
	return nil
}

// tell tells the store which keys are wanted.
func (s *secrets) tell() {
	wanted := s.wanted()
	s.store.Want(wanted)
	by := make(map[*conn][]string)
	s.mu.Lock()
	for _, k := range wanted {
		if a := s.asked[k]; a != nil && !a.wanted {
			a.wanted = true
			for c, names := range a.by {
				by[c] = append(by[c], names...)
			}
		}
	}
	s.mu.Unlock()
	for c, names := range by {
		c.keysMoved(names)
	}
}

// wanted returns the keys that have been asked for, and forgets those that the served
// version does not name: a stream that still reads the version before asks for its keys
// after keep has forgotten them. It gets the new version next, and with it other keys.
func (s *secrets) wanted() []keys.Key {
	s.mu.Lock()
	kept, asked := s.kept, slices.Collect(maps.Keys(s.asked))
	s.mu.Unlock()
	named := keysOf(s.named())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept != kept {
		s.wake() // look at the version that is served now
		return asked
	}
	return slices.DeleteFunc(asked, func(k keys.Key) bool {
		if !named[k] {
			delete(s.asked, k)
		}
		return !named[k]
	})
}

func keysOf(all map[piece.Key]bool) map[keys.Key]bool {
	named := make(map[keys.Key]bool, len(all))
	for k := range all {
		named[keyOf(&k)] = true
	}
	return named
}

// changed wakes the streams that have asked for a key.
func (s *secrets) changed(k keys.Key) {
	s.mu.Lock()
	var by map[*conn][]string
	if a := s.asked[k]; a != nil {
		by = maps.Clone(a.by)
	}
	s.mu.Unlock()
	for c, names := range by {
		c.keysMoved(names)
	}
}

// keep forgets all keys but those that are named now. Those that sealed files have stay
// wanted.
func (s *secrets) keep() {
	named := keysOf(s.named())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept++
	before, added := len(s.asked), 0
	for k := range named {
		if s.asked[k] == nil { // proxies had it before this process started, and may come back
			if pem, state := s.store.Get(k); state == keys.Here {
				clear(pem)
				s.asked[k] = &askedKey{by: make(map[*conn][]string)}
				added++
			}
		}
	}
	maps.DeleteFunc(s.asked, func(k keys.Key, _ *askedKey) bool { return !named[k] })
	maps.DeleteFunc(s.whole, func(_ xds.Sum, w wholeSecret) bool { return !named[w.key] })
	if added > 0 || len(s.asked) != before {
		s.wake()
	}
}

// sent records that a proxy was given the private key of a Secret, if it has one (KEY-13).
func (s *secrets) sent(c *conn, r *xds.Resource) {
	s.mu.Lock()
	w, has := s.whole[r.Sum]
	s.mu.Unlock()
	if !has {
		return
	}
	failpoint.At(failpoint.FrontendKeyGiven)
	object := fmt.Sprintf("Secret %s/%s (%s)", w.key.Namespace, w.key.Name, w.key.Shard)
	s.log.Info("gave a proxy a private key", "proxy", c.proxy.ID, "identity", c.id.name, "secret", r.Name, "object", object, "hmac", hex.EncodeToString([]byte(w.key.Sum)))
	if s.audit != nil {
		s.audit(&auditv1.Record{
			Action: auditv1.Action_ACTION_KEY_GIVEN, Identity: c.id.name, Proxy: c.proxy.ID,
			Object: object, Name: r.Name, Digest: []byte(w.key.Sum),
		})
	}
}

// leave forgets a stream.
func (s *secrets) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asked {
		delete(a.by, c)
	}
}

// KeyChanged tells the Server that a key has come to its store, or is known to be gone.
func (s *Server) KeyChanged(k keys.Key) { s.secrets.changed(k) }
