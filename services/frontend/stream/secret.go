package stream

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// The Sets of SDS name private keys, which the frontend gets apart from the versions.
// Versions and comparisons are of the names (KEY-5). A Secret that needs a key is sent
// when the key is here, and always has an entry until then.

// KeyState is where the private key of a Secret is.
type KeyState uint8

// States of a key.
const (
	KeyHere   KeyState = iota // the Secret is sent
	KeyComing                 // the answer to the client waits for it, and for nothing else
	KeyGone                   // the Secret is answered like one that does not exist
)

// KeysChanged tells the Stream that Config.Secret may return something else.
func (s *Stream) KeysChanged() {
	if w := s.watches[ident.SDS]; w != nil {
		w.touch()
		w.entries.changeAll()
	}
}

// withKey returns a Secret as the client is sent it; nil if its key is not here.
func (s *Stream) withKey(r *xds.Resource) *xds.Resource {
	if r == nil || r.Key() == nil {
		return r
	}
	r, state := s.cfg.Secret(r)
	if state != KeyHere {
		return nil
	}
	return r
}

// keyComes reports whether the key of a Secret is coming.
func (s *Stream) keyComes(name string) bool {
	r := s.view.Sets[ident.SDS].Find(name)
	if r == nil || r.Key() == nil {
		return false
	}
	_, state := s.cfg.Secret(r)
	return state == KeyComing
}

// incomplete reports whether the client does not have, after the next response, all that
// the version of the view says: its version must not be that of the view, with which the
// client would come back.
func (s *Stream) incomplete(w *watch) bool {
	if w.postponed {
		return true
	}
	for e := range w.entries.all() {
		if r := s.view.Sets[w.t].Find(e.name); r != nil && s.withKey(r) == nil {
			return true
		}
	}
	return false
}

// exceptKeys makes entries of the subscribed Secrets that need keys.
func (w *watch) exceptKeys(all []*xds.Resource) {
	for _, r := range all {
		if r.Key() != nil && w.covers(r.Name) {
			w.except(r.Name)
		}
	}
}
