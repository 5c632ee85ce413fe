package keys

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/seal"
)

// grace is how long the sealed file of a key stays that Want no longer names: a version
// that is rolled back, or a proxy that comes back, finds it.
const grace = 10 * time.Minute

// separator ends each part of the name in a sealed file.
const separator = "\x00"

var (
	// fileName is the form of the name of a sealed file: the HMAC, and a hash of the
	// shard, because the same Secret of two clusters has the same HMAC.
	fileName = regexp.MustCompile(`^[0-9a-f]{64}-[0-9a-f]{16}$`)
	// leftover is the form of the name of a file that seal had not put in its place
	// when its process was killed.
	leftover = regexp.MustCompile(`^\.[0-9a-f]{64}-[0-9a-f]{16}\.[0-9]+$`)
)

func (k Key) file() string {
	shard := sha256.Sum256([]byte(k.Shard.String()))
	return hexSum(k) + "-" + hex.EncodeToString(shard[:8])
}

// encode returns what is sealed. It has the name, so that a file under another name is
// not taken for the key of that name.
func encode(k Key, content []byte) []byte {
	head := k.Sum + strings.Join([]string{k.Shard.Source, k.Shard.Instance, k.Namespace, k.Name, k.Field}, separator) + separator
	return append(append(make([]byte, 0, len(head)+len(content)), head...), content...)
}

// decode is the inverse of encode. The content is a part of b.
func decode(b []byte) (k Key, content []byte, err error) {
	errForm := errors.New("is no private key of a frontend")
	if len(b) < sumSize {
		return Key{}, nil, errForm
	}
	k.Sum, content = string(b[:sumSize]), b[sumSize:]
	for _, part := range []*string{&k.Shard.Source, &k.Shard.Instance, &k.Namespace, &k.Name, &k.Field} {
		value, rest, found := bytes.Cut(content, []byte(separator))
		if !found || len(value) > maxPart {
			return Key{}, nil, errForm
		}
		*part, content = string(value), rest
	}
	if !k.valid() || len(content) > keyexchange.MaxFields {
		return Key{}, nil, errForm
	}
	return k, content, nil
}

// maxPart is longer than any name of an object.
const maxPart = 1024

// read returns the key in a file, which the caller owns.
func (s *Store) read(name string) (Key, []byte, error) {
	path := filepath.Join(s.cfg.Dir, name)
	b, err := s.cfg.Seal.ReadFile(path)
	if err != nil {
		return Key{}, nil, err
	}
	defer clear(b)
	k, content, err := decode(b)
	if err == nil && k.file() != name {
		err = fmt.Errorf("is the file %s under another name", k.file())
	}
	if err != nil {
		return Key{}, nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, bytes.Clone(content), nil
}

// open returns the content of a key from its file, if the HMAC fits.
func (s *Store) open(k Key) ([]byte, error) {
	found, content, err := s.read(k.file())
	if err == nil && found != k {
		err = fmt.Errorf("%s is the file of %s", k.file(), found.object())
	}
	if err == nil {
		err = s.check(k, content)
	}
	if err != nil {
		clear(content)
		return nil, err
	}
	return content, nil
}

// load reads the sealed files, and removes what killed processes have left.
func (s *Store) load() {
	if s.cfg.Dir == "" {
		return
	}
	if s.cfg.Seal != nil {
		s.noDisk = s.makeDir()
	}
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.noDisk = errors.Join(s.noDisk, err)
	}
	for _, f := range files {
		switch name := f.Name(); {
		case leftover.MatchString(name):
			if err := os.Remove(filepath.Join(s.cfg.Dir, name)); err != nil {
				s.log.Warn("cannot remove a file that a killed process has left", "error", err)
			}
		case !fileName.MatchString(name):
		case s.cfg.Seal == nil:
			s.unopened[name] = fmt.Errorf("%s: is sealed: give the key that sealed it with --seal-key-file", filepath.Join(s.cfg.Dir, name))
		default:
			s.loadFile(name)
		}
	}
	if s.noDisk != nil {
		s.log.Error("private keys are in memory only: the directory of the sealed files cannot be used", "error", s.noDisk)
	}
	if len(s.unopened) > 0 {
		s.log.Error("cannot open sealed files of private keys; they are left as they are, and their keys are asked for", "files", len(s.unopened), "error", s.firstUnopened())
	}
	if len(s.entries) > 0 {
		s.log.Info("private keys were read from sealed files", "keys", len(s.entries), "directory", s.cfg.Dir)
	}
}

func (s *Store) loadFile(name string) {
	k, content, err := s.read(name)
	if err != nil {
		s.unopened[name] = err
		return
	}
	s.saved[k] = time.Time{}
	// A key whose HMAC does not fit was sealed under another --secret-key-file.
	if len(s.entries) == maxKeys || s.check(k, content) != nil {
		clear(content)
		return
	}
	s.entries[k] = &entry{content: content, sealed: true}
}

// firstUnopened returns why the first file in the order of names cannot be opened. The
// caller holds mu.
func (s *Store) firstUnopened() error {
	names := make([]string, 0, len(s.unopened))
	for name := range s.unopened {
		names = append(names, name)
	}
	return s.unopened[slices.Min(names)]
}

// makeDir makes the directory, and returns when the disk has its name.
func (s *Store) makeDir() error {
	if _, err := os.Stat(s.cfg.Dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	return seal.SyncDir(filepath.Dir(s.cfg.Dir))
}

// save seals a key into its file and returns when the disk has it. Without a seal key it
// does nothing. It replaces a file that another seal key has sealed.
func (s *Store) save(k Key, content []byte) error {
	if s.cfg.Seal == nil {
		return nil
	}
	s.saves <- struct{}{}
	defer func() { <-s.saves }()
	plain := encode(k, content)
	defer clear(plain)
	err := s.makeDir()
	if err == nil {
		err = s.files.Write(s.cfg.Seal, k.file(), plain)
	}
	if err != nil {
		s.log.Error("cannot seal a private key into its file; it is in memory only", "object", k.object(), "field", k.Field, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noDisk = err; err != nil {
		return err
	}
	delete(s.unopened, k.file())
	s.saved[k] = time.Time{}
	if s.entries[k] == nil { // Want has dropped it meanwhile
		s.saved[k] = time.Now()
	}
	return nil
}

// sweep removes the files of keys that Want has not named for the grace.
func (s *Store) sweep() {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	var old []Key
	for k, since := range s.saved {
		if !since.IsZero() && time.Since(since) >= grace {
			old = append(old, k)
		}
	}
	s.mu.Unlock()
	if len(old) == 0 {
		return
	}
	var errs []error
	for _, k := range old {
		err := os.Remove(filepath.Join(s.cfg.Dir, k.file()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		delete(s.saved, k)
		s.mu.Unlock()
	}
	errs = append(errs, seal.SyncDir(s.cfg.Dir)) // else a crash could bring them back
	if err := errors.Join(errs...); err != nil {
		s.log.Error("cannot remove the sealed files of private keys that no version names; trying again", "error", err)
	}
}

// sealAgain seals the keys that are in memory only, because the disk could not take them.
func (s *Store) sealAgain() {
	if s.cfg.Seal == nil {
		return
	}
	s.mu.Lock()
	var unsealed []Key
	for k, e := range s.entries {
		if e.content != nil && !e.sealed {
			unsealed = append(unsealed, k)
		}
	}
	s.mu.Unlock()
	for _, k := range unsealed {
		content, _ := s.Get(k)
		if content == nil {
			continue
		}
		err := s.save(k, content)
		clear(content)
		if err != nil {
			return // the others would fail alike
		}
		s.mu.Lock()
		if e := s.entries[k]; e != nil {
			e.sealed = true
		}
		s.mu.Unlock()
	}
}
