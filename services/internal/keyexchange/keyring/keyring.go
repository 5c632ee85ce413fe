// Package keyring keeps the files of the exchange of keys: the long-lived xkey of a role,
// and the list of the public ones, which `meshlog bus-auth` writes (KEY-4).
//
// Processes read both for each request, so that they use a replaced key at once, and
// hold their own in memory only while they seal and open.
package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/keyexchange"
)

// ListName is the name of the list, which is in the directory of the keys.
const ListName = "xkeys.pub"

// frontend is the name of the frontends in a list. A watcher's has a slash.
const frontend = "frontend"

// anyInstance is the instance of a watcher of all instances, in a list.
const anyInstance = "*"

// Public is the public xkey of the frontends, or of the watchers of a shard.
type Public struct {
	Shard ident.Shard // zero: the frontends; without an instance: all of the source
	Key   string
}

// name returns the name of p in a list.
func (p Public) name() string {
	switch {
	case p.Shard.Source == "":
		return frontend
	case p.Shard.Instance == "":
		return p.Shard.Source + "/" + anyInstance
	}
	return p.Shard.String()
}

// List are the public xkeys of a mesh.
type List []Public

// Format returns the content of a list, a name and its xkey in each line.
func (l List) Format() []byte {
	var b bytes.Buffer
	for _, p := range l {
		fmt.Fprintf(&b, "%s %s\n", p.name(), p.Key)
	}
	return b.Bytes()
}

// Parse reads a list. It skips empty lines and those that begin with #.
func Parse(text []byte) (List, error) {
	var l List
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, key, _ := strings.Cut(line, " ")
		p := Public{Key: strings.TrimSpace(key)}
		if name != frontend {
			var watcher bool
			p.Shard.Source, p.Shard.Instance, watcher = strings.Cut(name, "/")
			if !watcher || p.Shard.Source == "" || p.Shard.Instance == "" {
				return nil, fmt.Errorf("line %d: %q is neither %s nor SOURCE/INSTANCE", n, name, frontend)
			}
			if p.Shard.Instance == anyInstance {
				p.Shard.Instance = ""
			}
		}
		if !keyexchange.IsPublic(p.Key) {
			return nil, fmt.Errorf("line %d: %s has no public xkey, which begins with X", n, name)
		}
		l = append(l, p)
	}
	return l, nil
}

// Frontends returns the xkeys of the frontends.
func (l List) Frontends() (keys []string) {
	for _, p := range l {
		if p.Shard.Source == "" {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// Watcher returns the xkey of the watchers of a shard: its own, or that of all
// instances of its source.
func (l List) Watcher(s ident.Shard) (key string, ok bool) {
	for _, shard := range []ident.Shard{s, {Source: s.Source}} {
		if i := slices.IndexFunc(l, func(p Public) bool { return p.Shard == shard }); i >= 0 && s.Source != "" {
			return l[i].Key, true
		}
	}
	return "", false
}

// Ring names the files of a process. The zero Ring has none.
type Ring struct {
	File string // the seed of the process's own xkey; ListName is beside it
}

// listFile returns the path of the list.
func (r Ring) listFile() string { return filepath.Join(filepath.Dir(r.File), ListName) }

// Own reads the process's own xkey. The caller wipes it.
func (r Ring) Own() (nkeys.KeyPair, error) { return ReadSeed(r.File) }

// List reads the list.
func (r Ring) List() (List, error) {
	path := r.listFile()
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("public keys of the key exchange: %w: `meshlog bus-auth` writes the list beside %s", err, r.File)
	}
	l, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("public keys of the key exchange: %s: %w: use the file that `meshlog bus-auth` writes", path, err)
	}
	return l, nil
}

// Verify returns the errors in the files.
func (r Ring) Verify() error {
	own, err := r.Own()
	if err == nil {
		own.Wipe()
	}
	_, list := r.List()
	return errors.Join(err, list)
}

// Ask sends a request for fields of a credential, and returns the answer, which the
// caller wipes. send carries the request to a watcher of the shard, and returns its
// answer.
func (r Ring) Ask(ctx context.Context, w keyexchange.Want, send func(ctx context.Context, request []byte) ([]byte, error)) (*keyexchange.Answer, error) {
	list, err := r.List()
	if err != nil {
		return nil, err
	}
	watcher, ok := list.Watcher(w.Shard)
	if !ok {
		return nil, fmt.Errorf("public keys of the key exchange: %s: has no watcher %s: run `meshlog bus-auth` with --watcher %s", r.listFile(), w.Shard, w.Shard)
	}
	own, err := r.Own()
	if err != nil {
		return nil, err
	}
	request, pending, err := keyexchange.Ask(own, watcher, w)
	own.Wipe()
	if err != nil {
		return nil, err
	}
	defer pending.Wipe()
	answer, err := send(ctx, request)
	if err != nil {
		return nil, err
	}
	return pending.Open(answer)
}

// ReadSeed reads an xkey from a file with its seed. The caller wipes it.
func ReadSeed(path string) (nkeys.KeyPair, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key of the key exchange: %w", err)
	}
	defer clear(b)
	key, err := nkeys.FromCurveSeed(bytes.TrimSpace(b))
	if err != nil {
		return nil, fmt.Errorf("key of the key exchange: %s: holds no seed of an xkey, which begins with SX: %w", path, err)
	}
	return key, nil
}

// NewSeed returns a new xkey as the content of its file. The caller wipes it.
func NewSeed() ([]byte, error) {
	key, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, err
	}
	defer key.Wipe()
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	defer clear(seed)
	return append(bytes.Clone(seed), '\n'), nil
}
