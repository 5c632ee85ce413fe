package busauth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/keyexchange/keyring"
)

// ListName is the name of the list of the public xkeys.
const ListName = keyring.ListName

// writeExchange writes the xkeys of frontends and watchers, and the list of the public
// ones (KEY-4). It keeps existing keys.
func writeExchange(dir string, roles []bus.Role) ([]File, error) {
	var files []File
	var list keyring.List
	known := map[string]bool{}
	for _, r := range roles {
		name, ok := r.ExchangeKeyName()
		if !ok {
			continue
		}
		path := filepath.Join(dir, name)
		known[path] = true
		public, state, err := ensureExchangeKey(path)
		if err != nil {
			return nil, err
		}
		shard, _ := r.Shard()
		list = append(list, keyring.Public{Shard: shard, Key: public})
		files = append(files, File{path, state})
	}
	unused, err := others(dir, "*.xk", known)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, ListName)
	state, err := writeConfig(path, listFile(list), 0o644)
	if err != nil {
		return nil, err
	}
	return append(append([]File{{path, state}}, files...), unused...), nil
}

func listFile(l keyring.List) []byte {
	body := l.Format()
	sum := sha256.Sum256(body)
	return append([]byte("# Public keys of the exchange of keys. `meshlog bus-auth` writes this file: do not\n"+
		"# change it. Frontends and watchers read it beside their own key, --key-exchange.\n"+
		sumMark+hex.EncodeToString(sum[:])+"\n"), body...)
}

// ensureExchangeKey returns the public key of the xkey in a file. It makes a missing
// file.
func ensureExchangeKey(path string) (public, state string, err error) {
	state = StateKept
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		state = stateNew
		seed, err := keyring.NewSeed()
		if err != nil {
			return "", "", err
		}
		defer clear(seed)
		if err := bus.ReplaceFile(path, seed, 0o600); err != nil {
			return "", "", err
		}
	}
	key, err := keyring.ReadSeed(path)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread): // the file may hold a key that others know
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("%w; move the file away to get a new key", err)
	}
	defer key.Wipe()
	public, err = key.PublicKey()
	return public, state, err
}
