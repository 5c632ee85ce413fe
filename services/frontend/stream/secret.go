package stream

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/secret"
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

// KeysChanged tells the Stream that Config.Secret may return something else for the
// Secrets of these names.
func (s *Stream) KeysChanged(names []string) {
	if w := s.watches[ident.SDS]; w != nil {
		w.touch()
		for _, name := range names {
			w.entries.change(name)
		}
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

// keyComes reports whether the key of the Secret is coming that the client should have.
func (s *Stream) keyComes(w *watch, name string) bool {
	r := s.wantKeyless(w, name)
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

// wantKeys asks for the keys of the subscribed Secrets, also if the client has come back
// with the Secrets. When it comes back without them, the watcher may be down (KEY-9).
func (s *Stream) wantKeys(w *watch) {
	if w.t != ident.SDS {
		return
	}
	for r := range w.in(s.view.Sets[w.t]) {
		s.withKey(r)
	}
}

// exceptKeys makes entries of the subscribed Secrets that need keys.
func (w *watch) exceptKeys(all []*xds.Resource) {
	for _, r := range all {
		if r.Key() != nil && w.covers(r.Name) {
			w.except(r.Name)
		}
	}
}

// keyWait is how long clusters and listeners wait for the keys that they need (SDS-9).
const keyWait = 5 * time.Second

// waitForKeys reports whether the next response of a type waits because it changes
// clusters or listeners that name a Secret whose key is coming: Envoy would replace what
// works by what cannot (S2). Clients that have nothing yet do not wait.
func (s *Stream) waitForKeys(now time.Time, w *watch) bool {
	if w.awaited = s.comingKeys(w); len(w.awaited) == 0 {
		w.keysUntil = time.Time{}
		return false
	}
	if w.keysUntil.IsZero() {
		w.keysUntil = now.Add(keyWait)
	}
	if now.Before(w.keysUntil) {
		return true
	}
	w.endKeyWait()
	return false
}

// endKeyWait ends a wait for keys; w may be nil.
func (w *watch) endKeyWait() {
	if w != nil {
		w.awaited, w.keysUntil = nil, time.Time{}
	}
}

// waitsForKeys reports whether the type waits for keys; w may be nil.
func (w *watch) waitsForKeys() bool { return w != nil && len(w.awaited) > 0 }

// comingKeys returns the Secrets whose keys are coming, and that changed clusters or
// listeners name and the client does not have.
func (s *Stream) comingKeys(w *watch) (all []string) {
	set := s.view.Sets[w.t]
	if secrets := s.view.Sets[ident.SDS]; secrets == nil || len(secrets.Resources) == 0 {
		return nil
	}
	if w.t != ident.CDS && w.t != ident.LDS || s.cfg.GRPC || w.phase != due || w.suspected == takingBack || w.sent == nil || w.sent == set {
		return nil
	}
	for _, r := range s.cfg.Names.Changes(w.sent, set).Resources {
		if !w.covers(r.Name) {
			continue
		}
		for name := range r.SecretNames() {
			if s.keyMissing(name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// keyMissing reports whether the client does not have a Secret, because its key is coming.
func (s *Stream) keyMissing(name string) bool {
	if w := s.watches[ident.SDS]; w != nil && w.covers(name) && w.state(name).acked != nil {
		return false
	}
	r := s.view.Sets[ident.SDS].Find(name)
	if r == nil || r.Key() == nil {
		return false
	}
	_, state := s.cfg.Secret(r)
	return state == KeyComing
}

// filesAgain is after which time a client is sent a rejected Secret in files once more.
const filesAgain = 30 * time.Second

// offerFiles sends rejected Secrets in files once more: only the client can know that its
// files were repaired (SDS-14). What it said stands until it takes them.
func (s *Stream) offerFiles(now time.Time) {
	w := s.watches[ident.SDS]
	if w == nil || s.filesAt.IsZero() || now.Before(s.filesAt) {
		return
	}
	s.filesAt = time.Time{}
	for name, h := range w.heldBack {
		if h.verdict != onTrial && secret.InFiles(name) && w.covers(name) {
			delete(w.heldBack, name)
			w.except(name).owe()
			w.touch()
		}
	}
}

// LackingSecrets returns the Secrets that the client has asked for and does not get, sorted:
// those that are not for it, or do not exist, and those whose private keys have not come.
func (s *Stream) LackingSecrets() (unknown, keyless []string) {
	w := s.watches[ident.SDS]
	if w == nil || w.phase == unresolved {
		return nil, nil
	}
	for name := range w.names.All() {
		has, r := w.state(name).acked, s.wantKeyless(w, name)
		switch _, held := w.heldBack[name]; {
		case r == nil && has == nil && !held:
			unknown = append(unknown, name)
		case r != nil && r.Key() != nil && !has.Same(r):
			if _, state := s.cfg.Secret(r); state == KeyGone {
				keyless = append(keyless, name)
			}
		}
	}
	slices.Sort(unknown)
	slices.Sort(keyless)
	return unknown, keyless
}
