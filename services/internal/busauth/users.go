package busauth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"

	"meshlog.dev/services/internal/bus"
)

// ConfigName is the name of the file that the servers include.
const ConfigName = "auth.conf"

// KeyName returns the name of the file with the key of a role's user.
func KeyName(r bus.Role) string { return r.String() + ".nk" }

// File is the result for one file.
type File struct {
	Path  string `json:"path"`
	State string `json:"state"` // new, changed, kept, unused
}

// States of files.
const (
	stateNew     = "new"
	stateChanged = "changed"
	stateKept    = "kept"
	stateUnused  = "unused" // the key of a former user
)

// WriteUsers writes the users of a mesh into a directory, which it makes if it is
// missing: ConfigName for the servers, and a key for each role, readable by its
// owner only. It keeps existing keys, also those of former users, which no server
// accepts any more.
func WriteUsers(dir, domain string, roles []bus.Role) ([]File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var files []File
	known := map[string]bool{}
	users := make([]string, len(roles))
	for i, r := range roles {
		path := filepath.Join(dir, KeyName(r))
		if known[path] {
			return nil, fmt.Errorf("%s: is named twice", r)
		}
		known[path] = true
		user, state, err := ensureKey(path)
		if err != nil {
			return nil, err
		}
		users[i] = user
		files = append(files, File{path, state})
	}
	former, err := filepath.Glob(filepath.Join(dir, "*.nk"))
	if err != nil {
		return nil, err
	}
	for _, path := range former {
		if !known[path] {
			files = append(files, File{path, stateUnused})
		}
	}
	path := filepath.Join(dir, ConfigName)
	state, err := writeConfig(path, config(domain, roles, users))
	if err != nil {
		return nil, err
	}
	return append([]File{{path, state}}, files...), nil
}

// ensureKey returns the public key of the key in a file. It makes a missing file.
func ensureKey(path string) (user, state string, err error) {
	state = stateKept
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		state = stateNew
		if err := newKey(path); err != nil {
			return "", "", err
		}
	}
	user, err = bus.ReadNkey(path)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread): // the file may hold a key that servers know
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("%w; move the file away to get a new key", err)
	}
	return user, state, nil
}

func newKey(path string) error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return err
	}
	return bus.ReplaceFile(path, append(bytes.Clone(seed), '\n'), 0o600)
}

// sumMark begins the line of a configuration with the checksum of the rest, which
// reveals changes by hand.
const sumMark = "# sha256 of what follows: "

// config returns the file that the servers include. users are the public keys of the
// roles.
func config(domain string, roles []bus.Role, users []string) []byte {
	var b bytes.Buffer
	b.WriteString("authorization {\n  users: [\n")
	for i, r := range roles {
		p := Permissions(r, domain)
		fmt.Fprintf(&b, "    # %s\n    { nkey: %q, permissions: {\n", r, users[i])
		list(&b, "publish", p.Publish)
		list(&b, "subscribe", p.Subscribe)
		if p.Answers {
			// Room for the parts of a large answer.
			b.WriteString("      allow_responses: { max: 1000, expires: \"1m\" }\n")
		}
		b.WriteString("    } }\n")
	}
	b.WriteString("  ]\n}\n")
	sum := sha256.Sum256(b.Bytes())
	head := fmt.Sprintf("# Users of the mesh %q. `meshlog bus-auth` writes this file:\n"+
		"# do not change it. In the configuration of nats-server: include %q\n%s%s\n", domain, ConfigName, sumMark, hex.EncodeToString(sum[:]))
	return append([]byte(head), b.Bytes()...)
}

func list(b *bytes.Buffer, verb string, subjects []string) {
	fmt.Fprintf(b, "      %s: { allow: [\n", verb)
	for _, s := range subjects {
		fmt.Fprintf(b, "        %q\n", s)
	}
	b.WriteString("      ] }\n")
}

// writeConfig replaces a configuration unless it was changed by hand.
func writeConfig(path string, content []byte) (state string, err error) {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return stateNew, bus.ReplaceFile(path, content, 0o644)
	case err != nil:
		return "", err
	case bytes.Equal(old, content):
		return stateKept, nil
	case !untouched(string(old)):
		return "", fmt.Errorf("%s: was not written by this command, or was changed since; move the file away to get a new one", path)
	}
	return stateChanged, bus.ReplaceFile(path, content, 0o644)
}

func untouched(config string) bool {
	_, rest, found := strings.Cut(config, sumMark)
	said, body, ok := strings.Cut(rest, "\n")
	sum := sha256.Sum256([]byte(body))
	return found && ok && said == hex.EncodeToString(sum[:])
}
