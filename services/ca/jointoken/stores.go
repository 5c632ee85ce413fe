package jointoken

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"meshlog.dev/services/internal/seal"
)

// Memory keeps join tokens in memory, for one replica. The zero value is empty.
type Memory struct {
	mu      sync.Mutex
	entries map[string]entry
	last    uint64
}

type entry struct {
	value    []byte
	revision uint64
	until    time.Time
}

// Create implements Store.
func (s *Memory) Create(_ context.Context, key string, value []byte, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[string]entry{}
	}
	now := time.Now()
	for k, e := range s.entries {
		if !now.Before(e.until) {
			delete(s.entries, k)
		}
	}
	if _, there := s.entries[key]; there {
		return fmt.Errorf("key %s: %w", key, fs.ErrExist)
	}
	s.last++
	s.entries[key] = entry{value, s.last, until}
	return nil
}

// Get implements Store.
func (s *Memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, there := s.entries[key]
	if !there || !time.Now().Before(e.until) {
		return nil, 0, ErrNone
	}
	return e.value, e.revision, nil
}

// Delete implements Store.
func (s *Memory) Delete(_ context.Context, key string, revision uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, there := s.entries[key]; !there || e.revision != revision {
		return ErrNone
	}
	delete(s.entries, key)
	return nil
}

// Files keeps join tokens as files of a directory, for replicas on one machine. A
// file is never changed, so it has one revision; its modification time is the token's
// end. Removing a name is atomic, so of several processes one succeeds.
type Files struct{ dir string }

// fileRevision is the revision of each file.
const fileRevision = 1

// tokenFile matches the names of files in the directory of Files, and of those that are not yet
// complete: it removes no others.
var tokenFile = regexp.MustCompile(`^[0-9a-f]{64}$|^\.[0-9a-f]{64}\.`)

// maxGrant is how many bytes a file may have.
const maxGrant = 4096

// NewFiles returns the store of a directory, which it makes if it is missing.
func NewFiles(dir string) (*Files, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Files{dir}, nil
}

func (s *Files) path(key string) string { return filepath.Join(s.dir, filepath.Base(key)) }

// Create implements Store.
func (s *Files) Create(_ context.Context, key string, value []byte, until time.Time) error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, f := range files {
		if !tokenFile.MatchString(f.Name()) {
			continue
		}
		// One that is written at the moment has the time of now.
		if info, err := f.Info(); err == nil && now.Sub(info.ModTime()) > time.Minute {
			if err := os.Remove(s.path(f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := seal.CreateFile(s.path(key), value); err != nil {
		return err
	}
	return os.Chtimes(s.path(key), time.Time{}, until)
}

// Get implements Store.
func (s *Files) Get(_ context.Context, key string) ([]byte, uint64, error) {
	value, err := seal.ReadPrivate(s.path(key), maxGrant)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, ErrNone
	}
	return value, fileRevision, err
}

// Delete implements Store.
func (s *Files) Delete(_ context.Context, key string, revision uint64) error {
	if revision != fileRevision {
		return ErrNone
	}
	err := os.Remove(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return err
	}
	return seal.SyncDir(s.dir) // else a crash could bring it back
}
