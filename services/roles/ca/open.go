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
	"time"

	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/seal"
)

// signing is an authority, and what keeps it current.
type signing struct {
	authority func() *signer.Authority
	given     func() []*x509.Certificate                // the roots in its files
	trouble   func() error                              // why newer files are not used
	step      func(now time.Time) error                 // uses a root that may sign now
	rotate    func(now time.Time) error                 // makes the next root; nil: it comes from elsewhere
	run       func(context.Context, *slog.Logger) error // reads the files again
}

// keys returns how the CA's key may be on disk.
func (s *Settings) keys() (signer.Keys, error) {
	k := signer.Keys{Clear: s.InsecureKeyFile}
	if s.SealKeyFile == "" {
		return k, nil
	}
	var err error
	if k.Seal, err = seal.ReadKey(s.SealKeyFile); err != nil {
		return k, process.Invalid("seal-key-file", "%w", err)
	}
	return k, nil
}

// rootsFile returns the file with the states of the roots: beside the key, unless it is set.
func (s *Settings) rootsFile() string {
	switch {
	case s.RootsFile != "":
		return s.RootsFile
	case s.Signer == plugged:
		return filepath.Join(s.Dir, "roots.state")
	}
	return s.KeyFile + ".roots"
}

// open reads, or makes, the authority, and records its roots.
func (s *Settings) open(now time.Time, log *slog.Logger) (signing, *roots, error) {
	keys, err := s.keys()
	if err != nil {
		return signing{}, nil, err
	}
	roots := &roots{
		path: s.rootsFile(), seal: keys.Seal, trustDomain: s.TrustDomain, longest: s.MaxTTL, any: s.UnannouncedRoot, log: log,
	}
	open := s.openSelf
	if s.Signer == plugged {
		open = s.openPlugged
	}
	signing, err := open(keys, roots, now, log)
	if err != nil {
		return signing, nil, err
	}
	if err := roots.follow(signing.authority(), signing.given(), now); err != nil {
		return signing, nil, err
	}
	return signing, roots, nil
}

func (s *Settings) openPlugged(keys signer.Keys, roots *roots, _ time.Time, _ *slog.Logger) (signing, error) {
	p, err := signer.LoadPlugged(s.Dir, keys, roots.accept)
	if err != nil {
		return signing{}, process.Invalid("ca-dir", "%w", err)
	}
	return signing{
		authority: p.Authority, given: func() []*x509.Certificate { return p.Authority().Roots() }, trouble: p.Trouble,
		step: func(time.Time) error { return nil }, run: p.Run, // it reads the files again, and asks accept
	}, nil
}

// Verify checks the files that the settings name. It makes none.
func (s *Settings) Verify() error {
	if s.Check() != nil {
		return nil // it has been reported
	}
	if s.Signer == none {
		_, err := s.openElsewhere(time.Now(), slog.New(slog.DiscardHandler))
		return err
	}
	_, issuers := s.issuers()
	var cluster error
	if s.Kubernetes {
		_, cluster = s.reviews()
	}
	return errors.Join(s.verifyKey(), issuers, cluster)
}

func (s *Settings) verifyKey() error {
	keys, err := s.keys()
	if err != nil {
		return err
	}
	roots := &roots{path: s.rootsFile(), seal: keys.Seal, trustDomain: s.TrustDomain, longest: s.MaxTTL, any: s.UnannouncedRoot}
	if s.Signer == plugged {
		_, err := s.openPlugged(keys, roots, time.Now(), nil)
		return err
	}
	_, err = os.Stat(s.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && keys.Seal == nil && !keys.Clear:
		return process.Invalid(s.flag("ca-key-file"), "does not exist, and a new key would be in clear: give --seal-key-file, or allow that with --insecure-ca-key-file")
	case errors.Is(err, fs.ErrNotExist):
		return roots.none(s.KeyFile)
	case err != nil:
		return process.Invalid(s.flag("ca-key-file"), "%w", err)
	}
	_, err = s.openSelf(keys, roots, time.Now(), nil)
	return err
}

// report is what /debug/ca shows.
type report struct {
	TrustDomain string       `json:"trustDomain"`
	Subject     string       `json:"subject"`
	Serial      string       `json:"serial"`
	Ends        time.Time    `json:"ends"`
	Roots       []rootReport `json:"roots"`
	Serving     certificate  `json:"serving"`
	Trouble     string       `json:"trouble,omitempty"`
}

type certificate struct {
	Names  []string  `json:"names"`
	Serial string    `json:"serial"`
	Ends   time.Time `json:"ends"`
	Renews time.Time `json:"renews"`
}

func (a *authority) report() report {
	own := a.signer.authority()
	r := report{
		TrustDomain: a.TrustDomain, Subject: own.Certificate().Subject.String(), Serial: own.Certificate().SerialNumber.Text(16),
		Ends: own.Ends(), Roots: a.roots.report(), Serving: a.serving.report(),
	}
	if err := errors.Join(a.signer.trouble(), a.serving.problem()); err != nil {
		r.Trouble = err.Error()
	}
	return r
}

func wrongSeal(path string, err error) error {
	return fmt.Errorf("states of the roots: %s: %w", path, err)
}
