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

// File is what became of a file.
type File struct {
	Path  string `json:"path"`
	State string `json:"state"` // new, changed, kept, unused
}

// What becomes of files.
const (
	stateNew     = "new"
	stateChanged = "changed"
	stateKept    = "kept"
	stateUnused  = "unused" // of a user that is no longer one
)

// WriteUsers writes the users of a mesh into a directory, which it makes where
// it is missing: ConfigName for the servers, and a key for each role, readable
// by their owner only. Keys that are there are kept; so are those of former
// users, which no longer open anything.
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

// ensureKey returns the public key of the one in a file, which it makes where
// it is missing.
func ensureKey(path string) (user, state string, err error) {
	state = stateKept
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		state = stateNew
		if err := newKey(path); err != nil {
			return "", "", err
		}
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	defer clear(seed)
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return "", "", fmt.Errorf("%s: is not a key: %w; move it away, and a new one is made", path, err)
	}
	defer pair.Wipe()
	if user, err = pair.PublicKey(); err == nil && !nkeys.IsValidPublicUserKey(user) {
		err = fmt.Errorf("%s: is not the key of a user", path)
	}
	return user, state, err
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
	return replaceFile(path, append(bytes.Clone(seed), '\n'), 0o600)
}

// sumMark begins the line of a configuration that tells whether somebody else
// has changed the rest.
const sumMark = "# sha256 of what follows: "

// config returns what the servers include. users are the public keys of the roles.
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
	head := fmt.Sprintf("# Users of the mesh %q. `meshlog bus-auth` wrote this and will write it anew:\n"+
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

// writeConfig puts a configuration in the place of one that nobody else has
// changed.
func writeConfig(path string, content []byte) (state string, err error) {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return stateNew, replaceFile(path, content, 0o644)
	case err != nil:
		return "", err
	case bytes.Equal(old, content):
		return stateKept, nil
	case !untouched(string(old)):
		return "", fmt.Errorf("%s: was not written by this command, or was changed since; move it away, and it is written anew", path)
	}
	return stateChanged, replaceFile(path, content, 0o644)
}

func untouched(config string) bool {
	_, rest, found := strings.Cut(config, sumMark)
	said, body, ok := strings.Cut(rest, "\n")
	sum := sha256.Sum256([]byte(body))
	return found && ok && said == hex.EncodeToString(sum[:])
}

// replaceFile puts a file at path, whole or not at all.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
