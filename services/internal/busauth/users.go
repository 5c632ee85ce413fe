package busauth

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// ConfigName is the name of the file that the servers include.
const ConfigName = bus.AccountsName

// File is the result for one file.
type File struct {
	Path  string `json:"path"`
	State string `json:"state"` // new, changed, extended, replaced, kept, unused
}

// StateKept is the state of a file or permission that stayed as it was.
const StateKept = "kept"

// Other states of files.
const (
	stateNew     = "new"
	stateChanged = "changed"
	// Accounts were added: servers that run must load the file twice. The imports of
	// an account that is new with a reload do not work until the next one.
	stateExtended = "extended"
	// The file of an older build, with one account for all: the streams must move.
	stateReplaced = "replaced"
	stateUnused   = "unused" // the key of a former user
)

// Users are the users of a mesh on the bus.
type Users struct {
	Domain string
	Roles  []bus.Role
	// Limits narrow what watchers may publish; a watcher without one may publish all
	// of its shard. nil: there are no limits.
	Limits map[bus.Role]Limit
	// Signed: operators sign their records, so their user need not publish the sessions of
	// watchers.
	Signed bool
}

// WriteUsers writes users without limits, as Users.Write does.
func WriteUsers(dir, domain string, roles []bus.Role) ([]File, error) {
	files, _, err := Users{Domain: domain, Roles: roles}.Write(dir)
	return files, err
}

// Write writes the users into a directory, which it makes if it is missing:
// ConfigName for the servers, a key for each role and the administrator, and the xkeys
// of the exchange of keys with the list of the public ones; keys are readable by their
// owner only. It keeps existing keys, also those of former users, which no
// server accepts any more, and the accounts of former watchers: a server that runs
// does not forget an account that a reload removes, and mistakes it if it comes back.
// It also returns what watchers may publish of their objects: with Limits of all of
// them, else of those that had a limit before.
func (u Users) Write(dir string) ([]File, []Permission, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	roles := append([]bus.Role{bus.Admin()}, u.Roles...)
	path := filepath.Join(dir, ConfigName)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	former, older := formerWatchers(string(old))
	if err := distinct(u.Roles, former); err != nil {
		return nil, nil, err
	}
	var files []File
	known := map[string]bool{}
	keys := make([]string, len(roles))
	for i, r := range roles {
		path := filepath.Join(dir, r.KeyName())
		known[path] = true
		key, state, err := ensureKey(path)
		if err != nil {
			return nil, nil, err
		}
		keys[i] = key
		files = append(files, File{path, state})
	}
	unused, err := others(dir, "*.nk", known)
	if err != nil {
		return nil, nil, err
	}
	exchange, err := writeExchange(dir, u.Roles)
	if err != nil {
		return nil, nil, err
	}
	files = slices.Concat(files, unused, exchange)
	stay, added := slices.Clip(former), false
	for _, r := range optional {
		if strings.Contains(string(old), strconv.Quote(accountName(r))) {
			stay = append(stay, r)
		} else if slices.Contains(u.Roles, r) {
			added = true
		}
	}
	all := accounts(u.Domain, roles, keys, stay)
	for _, a := range all {
		if l, ok := u.Limits[a.role]; ok && len(a.users) > 0 {
			a.limit(u.Domain, l)
		}
	}
	if u.Signed {
		signedOnly(u.Domain, all)
	}
	content := config(u.Domain, all)
	state, err := writeConfig(path, content, 0o644)
	if err != nil {
		return nil, nil, err
	}
	switch now, _ := formerWatchers(string(content)); {
	case state != stateChanged:
	case older:
		state = stateReplaced
	case len(now) > len(former), added:
		state = stateExtended
	}
	return append([]File{{path, state}}, files...), u.compare(all, string(old)), nil
}

// optional are the roles, beside watchers, that a mesh has only if it is told. Once they have an
// account, that stays.
var optional = []bus.Role{bus.Observer(), bus.Console()}

// others returns the keys of former users: the files of a pattern that are not known.
func others(dir, pattern string, known map[string]bool) (unused []File, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	for _, path := range paths {
		if !known[path] {
			unused = append(unused, File{path, stateUnused})
		}
	}
	return unused, err
}

// distinct returns an error if two roles have one name. Watchers of different shards
// have if a hyphen is in the source or in the instance: a/b-c, a-b/c and all of a-b-c.
// The key and the account of one, also of a former one, must not become those of the
// other.
func distinct(roles, former []bus.Role) error {
	names := map[string]bus.Role{}
	for _, r := range former {
		names[r.String()] = r
	}
	seen := map[bus.Role]bool{}
	for _, r := range roles {
		other, taken := names[r.String()]
		switch {
		case seen[r]:
			return fmt.Errorf("%s: is named twice", r)
		case taken && other != r:
			mine, _ := r.Shard()
			theirs, _ := other.Shard()
			return fmt.Errorf("watcher %s: its key and its account would be those of %s, %s, which is or was a watcher of this mesh; give its source or its instance another name",
				WatcherName(mine), WatcherName(theirs), r.KeyName())
		}
		names[r.String()], seen[r] = r, true
	}
	return nil
}

// Accounts returns the function that writes the users of a mesh for an embedded
// server.
func Accounts(domain string, roles ...bus.Role) func(dir string) error {
	return func(dir string) error {
		_, err := WriteUsers(dir, domain, roles)
		return err
	}
}

// ensureKey returns the public key of the key in a file. It makes a missing file.
func ensureKey(path string) (user, state string, err error) {
	state = StateKept
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

// watchersMark begins the line of a configuration that lists the watchers that have
// an account, as JSON: [["file","default"],["kubernetes",""]].
const watchersMark = "# watchers with an account: "

// formerWatchers returns the watchers in a configuration; older reports that it is
// the configuration of an older build, without accounts.
func formerWatchers(config string) (roles []bus.Role, older bool) {
	_, rest, found := strings.Cut(config, watchersMark)
	line, _, _ := strings.Cut(rest, "\n")
	var shards [][2]string
	if !found || json.Unmarshal([]byte(line), &shards) != nil {
		return nil, config != ""
	}
	for _, s := range shards {
		roles = append(roles, bus.Watcher(ident.Shard{Source: s[0], Instance: s[1]}))
	}
	return roles, false
}

// config returns the file that the servers include.
func config(domain string, all []*account) []byte {
	var b bytes.Buffer
	watchers := [][2]string{}
	for _, a := range all {
		if s, ok := a.role.Shard(); ok {
			watchers = append(watchers, [2]string{s.Source, s.Instance})
		}
	}
	line, err := json.Marshal(watchers)
	if err != nil {
		panic(err) // strings always encode
	}
	fmt.Fprintf(&b, "%s%s\n%saccounts {\n  %s {}\n", watchersMark, line, limitsLine(all), bus.SystemAccount)
	for _, a := range all {
		a.write(&b)
	}
	fmt.Fprintf(&b, "}\nsystem_account: %s\n", bus.SystemAccount)
	sum := sha256.Sum256(b.Bytes())
	head := fmt.Sprintf("# Accounts of the mesh %q. `meshlog bus-auth` writes this file:\n"+
		"# do not change it. In the configuration of nats-server: include %q\n%s%s\n", domain, ConfigName, sumMark, hex.EncodeToString(sum[:]))
	return append([]byte(head), b.Bytes()...)
}

func (a *account) write(b *bytes.Buffer) {
	fmt.Fprintf(b, "  # %s\n  %q {\n", a.about, a.name)
	for _, l := range a.limits {
		fmt.Fprintf(b, "    %s\n", l)
	}
	b.WriteString("    users: [\n")
	for _, key := range a.users {
		fmt.Fprintf(b, "      { nkey: %q", key)
		if p := cmp.Or(a.user, a.perms); p != nil {
			b.WriteString(", permissions: {\n")
			list(b, "publish", p.Publish, p.Deny)
			list(b, "subscribe", p.Subscribe, nil)
			if p.Answers {
				// Room for the parts of a large answer.
				b.WriteString("        allow_responses: { max: 1000, expires: \"1m\" }\n")
			}
			b.WriteString("      }")
		}
		b.WriteString(" }\n")
	}
	b.WriteString("    ]\n    exports: [\n")
	for _, e := range a.exports {
		more := ""
		if e.more != "" {
			more = ", " + e.more
		}
		fmt.Fprintf(b, "      { %s: %q, accounts: [%s]%s }\n", e.kind, e.subject, quoted(e.accounts), more)
	}
	b.WriteString("    ]\n    imports: [\n")
	for _, i := range a.imports {
		fmt.Fprintf(b, "      %s\n", i)
	}
	b.WriteString("    ]\n  }\n")
}

func quoted(names []string) string {
	var q []string
	for _, n := range names {
		q = append(q, strconv.Quote(n))
	}
	return strings.Join(q, ", ")
}

func list(b *bytes.Buffer, verb string, allow, deny []string) {
	fmt.Fprintf(b, "        %s: { allow: [\n", verb)
	for _, s := range allow {
		fmt.Fprintf(b, "          %q\n", s)
	}
	if len(deny) > 0 {
		b.WriteString("        ], deny: [\n")
		for _, s := range deny {
			fmt.Fprintf(b, "          %q\n", s)
		}
	}
	b.WriteString("        ] }\n")
}

// writeConfig replaces a configuration unless it was changed by hand.
func writeConfig(path string, content []byte, mode fs.FileMode) (state string, err error) {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return stateNew, bus.ReplaceFile(path, content, mode)
	case err != nil:
		return "", err
	case bytes.Equal(old, content):
		return StateKept, nil
	case !untouched(string(old)):
		return "", fmt.Errorf("%s: was not written by this command, or was changed since; move the file away to get a new one", path)
	}
	return stateChanged, bus.ReplaceFile(path, content, mode)
}

func untouched(config string) bool {
	_, rest, found := strings.Cut(config, sumMark)
	said, body, ok := strings.Cut(rest, "\n")
	sum := sha256.Sum256([]byte(body))
	return found && ok && said == hex.EncodeToString(sum[:])
}
