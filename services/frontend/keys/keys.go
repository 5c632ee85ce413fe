// Package keys keeps the private keys that a frontend serves (KEY-5, KEY-8, KEY-9).
//
// A version names a key by its HMAC, and does not hold it. A Store asks a watcher of the
// key's shard for it until it gets the content with that HMAC. It keeps the content in
// memory while Want names it and, with a seal key, in a sealed file too, so that a
// frontend that starts while all other processes are down serves as before.
//
//	Want ──> in memory? ──> in a sealed file? ──> Local ──> Ask, again after 250 ms to 10 s
//	                                                         │
//	Get <── memory <── sealed file, synced <── HMAC fits? <──┘
//
// No key is in a log line, an error, a metric or a record of the audit (KEY-1).
package keys

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/credential"
)

const (
	// maxKeys is how many keys a Store keeps.
	maxKeys = 10_000
	// comingFor is how long a key that is not here counts as coming. A proxy hears
	// nothing of a secret for that long; then it is told that the secret is unknown.
	comingFor = 4 * time.Second
	// savesAtOnce is how many sealed files are written at a time: each keeps a thread
	// waiting for the disk.
	savesAtOnce = 16
	// sumSize is the size of an HMAC.
	sumSize = 32
)

// Key names a private key: of which object and field, and its HMAC as a version names it.
type Key struct {
	Shard           ident.Shard
	Namespace, Name string
	Field           string // "tls.key"
	Sum             string // the 32 bytes of the HMAC, not in hex
}

// object returns the name of the key's object, for messages.
func (k Key) object() string {
	return fmt.Sprintf("Secret %s/%s (%s)", k.Namespace, k.Name, k.Shard)
}

// valid reports whether k can be asked for. A reference from a watcher without
// --secret-key-file has no HMACs.
func (k Key) valid() bool {
	return len(k.Sum) == sumSize && credential.IsField(k.Field) &&
		!slices.ContainsFunc([]string{k.Shard.Source, k.Shard.Instance, k.Namespace, k.Name}, func(part string) bool {
			return part == "" || strings.Contains(part, separator)
		})
}

// State says whether a Store has a key.
type State int

// States of a key.
const (
	// Gone: the key did not come for 4 s, or there is no watcher to ask, or Want does
	// not name it. The Store still asks for a key that Want names.
	Gone State = iota
	// Coming: the Store has asked for the key for less than 4 s.
	Coming
	// Here: the Store has the key.
	Here
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Here:
		return "here"
	case Coming:
		return "coming"
	}
	return "gone"
}

// Config configures a Store.
type Config struct {
	// Ask asks a watcher of the shard for fields of an object. The Store wipes the
	// answer. nil: there is no watcher to ask.
	Ask func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error)
	// Sums is the key of the HMACs, the content of --secret-key-file without the
	// whitespace around it. If it is empty, the Store takes what watchers give without
	// a check of its own, and does not use Local.
	Sums []byte
	// Dir is the directory of the sealed files, made if it is missing, and Seal their
	// key. Without Seal, keys are in memory only.
	Dir  string
	Seal *seal.Key
	// Local reads a key that this machine has; nil bytes: it has none. The Store owns
	// the bytes, and uses them only if their HMAC fits. Optional.
	Local func(ctx context.Context, k Key) ([]byte, error)
	Log   *slog.Logger
	// OnChange is called when a key has come, and when it is known to be gone. The calls
	// come from Run's goroutines, several at a time, and never under a lock. It must
	// not block for long. Optional.
	OnChange func(Key)
	// Audit takes the record of a key that was refused because its HMAC does not fit
	// (KEY-13). It must not block. Optional.
	Audit func(*auditv1.Record)
}

// Store keeps private keys. It is safe for concurrent use, and a prometheus.Collector.
type Store struct {
	cfg  Config
	log  *loglimit.Logger
	poke chan struct{} // Run has something to do

	// disk is held by what decides which sealed files exist: Want and sweep. It is
	// locked before mu.
	disk  sync.Mutex
	files seal.Dir
	saves chan struct{} // has a token for each file that is being written

	mu       sync.Mutex
	entries  map[Key]*entry
	fetches  map[object]*fetch
	starts   []*fetch // those that Run has yet to start
	waits    []wait   // keys that came to be wanted, the oldest first
	slots    map[ident.Shard]chan struct{}
	saved    map[Key]time.Time // sealed files, and since when Want does not name them; zero: it does
	unopened map[string]error  // files of Dir that cannot be opened, by name
	noDisk   error             // why the newest key is in memory only
	leftOut  int               // keys that the newest Want named beyond maxKeys
	noSum    int               // keys that it named without an HMAC
	answers  map[string]uint64 // requests, by outcome
}

// entry is a key that Want names, or that was read at the start.
type entry struct {
	content []byte // nil: not here
	sealed  bool   // a sealed file has it
	since   time.Time
	gone    bool // OnChange was told that it is gone
	refused bool // the audit has a refusal
}

func (e *entry) state(now time.Time) State {
	switch {
	case e.content != nil:
		return Here
	case e.gone || now.Sub(e.since) >= comingFor:
		return Gone
	}
	return Coming
}

// wait is a key that is gone if it is not here when comingFor has passed.
type wait struct {
	key   Key
	entry *entry
}

// New returns a Store with the keys in the sealed files: Get has them at once (KEY-9).
// Other keys come while Run runs. What is wrong with the directory is no error of New:
// Trouble returns it, and keys are in memory only.
func New(cfg Config) *Store {
	s := &Store{
		cfg: cfg, files: seal.Dir{Path: cfg.Dir}, saves: make(chan struct{}, savesAtOnce), log: loglimit.New(cfg.Log, 10), poke: make(chan struct{}, 1),
		entries: map[Key]*entry{}, fetches: map[object]*fetch{}, slots: map[ident.Shard]chan struct{}{},
		saved: map[Key]time.Time{}, unopened: map[string]error{}, answers: map[string]uint64{},
	}
	for _, outcome := range outcomes {
		s.answers[outcome] = 0
	}
	s.load()
	return s
}

// Get returns a key and its state; the bytes are nil unless it is Here. They are a copy,
// which stays valid when the Store wipes its own; the caller clears it after use. Get
// does no IO.
func (s *Store) Get(k Key) (pem []byte, state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	if e == nil {
		return nil, Gone
	}
	return bytes.Clone(e.content), e.state(time.Now())
}

// Want replaces the keys that the Store keeps: those that served versions name and that
// an allowed proxy has asked for. At a rotation it names the new key beside the old one
// until no served version names the old one.
//
// A key that a sealed file has is Here when Want returns; the Store begins to ask for the
// others. Keys that Want does not name, those that New has read among them, are wiped from
// memory at once, and their sealed files are removed after 10 minutes. Of more than 10,000 keys, those that were wanted
// before come first, and the rest is left out; Trouble says so. A key without an HMAC of
// 32 bytes, or whose field is none of a credential, is Gone.
//
// Want reads files, so a call with many new keys takes some milliseconds.
func (s *Store) Want(all []Key) {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	fresh := s.replace(all)
	var onDisk []Key
	for _, k := range fresh {
		if _, ok := s.saved[k]; ok {
			onDisk = append(onDisk, k)
		}
	}
	leftOut := s.leftOut
	s.mu.Unlock()
	if leftOut > 0 {
		s.log.Error("the served versions name more private keys than a frontend keeps; the rest is not served", "left_out", leftOut, "limit", maxKeys)
	}

	opened := make(map[Key][]byte, len(onDisk))
	for _, k := range onDisk {
		content, err := s.open(k)
		if err != nil {
			s.log.Warn("cannot read the sealed file of a private key; asking its watcher", "object", k.object(), "field", k.Field, "error", err)
			continue
		}
		opened[k] = content
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, k := range fresh {
		content := opened[k]
		e := &entry{content: content, sealed: content != nil, since: now}
		s.entries[k] = e
		if _, ok := s.saved[k]; ok {
			s.saved[k] = time.Time{}
		}
		if content == nil {
			s.miss(k, e)
		}
	}
	s.wakeRun()
}

// replace drops the entries that all does not name, and returns the keys of all that
// need one, without those beyond maxKeys. The caller holds mu.
func (s *Store) replace(all []Key) (fresh []Key) {
	wanted := make(map[Key]bool, len(all))
	s.noSum = 0
	for _, k := range all {
		switch _, known := s.entries[k]; {
		case wanted[k]:
		case !k.valid():
			s.noSum++
		default:
			wanted[k] = true
			if !known {
				fresh = append(fresh, k)
			}
		}
	}
	now := time.Now()
	for k, e := range s.entries {
		if !wanted[k] {
			s.drop(k, e, now)
		} else if _, ok := s.saved[k]; ok {
			s.saved[k] = time.Time{}
		}
	}
	for k, since := range s.saved {
		if since.IsZero() && !wanted[k] { // read at the start, and not used
			s.saved[k] = now
		}
	}
	room := max(0, maxKeys-len(s.entries))
	s.leftOut = max(0, len(fresh)-room)
	return fresh[:len(fresh)-s.leftOut]
}

// drop wipes a key from memory. The caller holds mu.
func (s *Store) drop(k Key, e *entry, now time.Time) {
	clear(e.content)
	delete(s.entries, k)
	if _, ok := s.saved[k]; ok {
		s.saved[k] = now
	}
	if f := s.fetches[k.of()]; f != nil {
		f.missing = slices.DeleteFunc(f.missing, func(m Key) bool { return m == k })
		f.rouse() // it may have nothing to do any more
	}
}

// miss begins to ask for a key. The caller holds mu.
func (s *Store) miss(k Key, e *entry) {
	if s.cfg.Ask == nil && s.cfg.Local == nil {
		e.gone = true
		return
	}
	s.waits = append(s.waits, wait{k, e})
	f := s.fetches[k.of()]
	if f == nil {
		f = &fetch{object: k.of(), wake: make(chan struct{}, 1)}
		s.fetches[f.object] = f
		s.starts = append(s.starts, f)
	}
	f.missing, f.singly = append(f.missing, k), false
	f.rouse()
}

// wakeRun has Run look for what it has to do.
func (s *Store) wakeRun() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// check returns an error unless content is what k names. The error does not repeat it.
func (s *Store) check(k Key, content []byte) error {
	switch {
	case len(content) == 0:
		return errors.New("it is empty")
	case len(content) > keyexchange.MaxFields:
		return fmt.Errorf("it has %d bytes, want at most %d", len(content), keyexchange.MaxFields)
	case len(s.cfg.Sums) == 0:
		return nil
	}
	source := credential.Source{Namespace: k.Namespace, Name: k.Name, Data: map[string][]byte{k.Field: content}}
	if !hmac.Equal(credential.Sum(source, k.Field, s.cfg.Sums), []byte(k.Sum)) {
		return errUnfit
	}
	return nil
}

var errUnfit = errors.New("its HMAC is not the one that the version names: the watcher gave another key, or has another --secret-key-file than the frontend")

func hexSum(k Key) string { return hex.EncodeToString([]byte(k.Sum)) }

func (s *Store) changed(k Key) {
	if s.cfg.OnChange != nil {
		s.cfg.OnChange(k)
	}
}
