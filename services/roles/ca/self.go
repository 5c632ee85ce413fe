package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/process"
)

// selfSigner is the authority with roots of its own. A rotation has these steps, and the
// process may die after each (CA-10):
//
//	the next key and root are in a file of their own
//	the root is announced in the states, and so in the TrustBundle
//	the states say that it may sign
//	its file takes the place of the one before
//	the states say that it is active, and the one before retiring
type selfSigner struct {
	files signer.SelfFiles
	roots *roots

	now     atomic.Pointer[selfState]
	trouble atomic.Pointer[error]
}

// selfState is immutable.
type selfState struct {
	authority *signer.Authority
	given     []*x509.Certificate // the roots in the files
}

func (s *Settings) openSelf(keys signer.Keys, roots *roots, now time.Time, log *slog.Logger) (signing, error) {
	if _, err := os.Stat(s.KeyFile); errors.Is(err, fs.ErrNotExist) {
		// A lost key must not become a new root that no proxy knows.
		if err := roots.none(s.KeyFile); err != nil {
			return signing{}, err
		}
		if err := os.MkdirAll(filepath.Dir(s.KeyFile), 0o700); err != nil {
			return signing{}, process.Invalid(s.flag("ca-key-file"), "%w", err)
		}
	}
	own := &selfSigner{files: signer.SelfFiles{Path: s.KeyFile, TrustDomain: s.TrustDomain, Keys: keys}, roots: roots}
	made, err := own.read(now)
	if err != nil {
		return signing{}, process.Invalid(s.flag("ca-key-file"), "%w", err)
	}
	if made {
		a := own.authority()
		log.Info("made the root of the mesh; keep a copy of the file and of its seal key", "file", s.KeyFile, "root", named(a.Root()), "ends", a.Ends())
	}
	return signing{
		authority: own.authority, given: own.given, trouble: own.problem, step: own.step, rotate: own.rotate,
		run: func(ctx context.Context, _ *slog.Logger) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}, nil
}

func (s *selfSigner) authority() *signer.Authority { return s.now.Load().authority }

func (s *selfSigner) given() []*x509.Certificate { return s.now.Load().given }

func (s *selfSigner) problem() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// rotate makes the next root, unless there is one.
func (s *selfSigner) rotate(now time.Time) error {
	unlock, err := lock(s.files.Path)
	if err != nil {
		return err
	}
	defer unlock()
	return s.files.Prepare(now)
}

// step puts an announced root that may sign in place of the current one, and reads the
// files again: another replica may have done so.
func (s *selfSigner) step(now time.Time) error {
	err := s.promote()
	if err == nil {
		_, err = s.read(now)
	}
	if err != nil {
		err = fmt.Errorf("%w; the previous CA stays in use, until %s", err, s.authority().Ends().UTC().Format(time.RFC3339))
		s.trouble.Store(&err)
		return err
	}
	s.trouble.Store(nil)
	return nil
}

func (s *selfSigner) promote() error {
	unlock, err := lock(s.files.Path)
	if err != nil {
		return err
	}
	defer unlock()
	next, err := s.roots.ready()
	if err != nil || next == nil {
		return err
	}
	return s.files.Promote(next)
}

// read makes the authority of the files. Callers renew certificates of retiring roots by
// them, so it trusts these too.
func (s *selfSigner) read(now time.Time) (made bool, err error) {
	current, next, made, err := s.files.Open(now)
	if err != nil {
		return false, err
	}
	state := &selfState{given: []*x509.Certificate{current.Root}}
	if next != nil {
		state.given = append(state.given, next.Root)
	}
	known, err := s.roots.read()
	if err != nil {
		return false, err
	}
	trusted := slices.Clone(state.given)
	for _, r := range known {
		trusted = append(trusted, r.cert)
	}
	if state.authority, err = current.Authority(now, trusted...); err != nil {
		return false, fmt.Errorf("%s: %w", s.files.Path, err)
	}
	if err := s.roots.accept(state.authority); err != nil {
		return false, err
	}
	// Certificates of servers are renewed when the authority is another.
	if before := s.now.Load(); before != nil && sameAuthority(before.authority, state.authority) {
		state.authority = before.authority
	}
	s.now.Store(state)
	return made, nil
}

func sameAuthority(a, b *signer.Authority) bool {
	return a.Certificate().Equal(b.Certificate()) && slices.EqualFunc(a.Roots(), b.Roots(), (*x509.Certificate).Equal)
}
