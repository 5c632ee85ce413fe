// Package jointoken makes join tokens and keeps what they are good for: one
// certificate of one workload, or of one server, until a time (CA-6, CA-11). The command line makes them, and a
// CA spends them.
package jointoken

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/mesh/spiffe"
)

// prefix begins each join token, so that scanners for secrets find one that was
// published by mistake.
const prefix = "meshlog-join-"

// size is the randomness of a join token: 256 bits (CA-6).
const size = 32

// MaxTTL is how long a join token may last. The bus forgets spent tokens an hour later.
const MaxTTL = 24 * time.Hour

// ErrNone says that a store has no such token, or not any more. Errors of other
// packages that wrap fs.ErrNotExist mean the same.
var ErrNone = fmt.Errorf("no such join token, or it is spent: %w", fs.ErrNotExist)

// Store keeps join tokens for all replicas of a CA. Keys are hashes, so what is kept
// is no token.
type Store interface {
	// Create keeps a value until a time. An existing key is an error.
	Create(ctx context.Context, key string, value []byte, until time.Time) error
	// Get returns a value and its revision, or an error that wraps fs.ErrNotExist.
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	// Delete deletes a key if it has this revision, durably. Of several callers one
	// succeeds; the others get an error that wraps fs.ErrNotExist.
	Delete(ctx context.Context, key string, revision uint64) error
}

// Grant is what a token is good for: one certificate of this workload or, with Serving,
// one of a server with these DNS names, and of no workload. A CA of an older build refuses
// a grant with Serving, because it names no workload.
type Grant struct {
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"serviceAccount"`
	Serving        []string  `json:"serving,omitempty"`
	Until          time.Time `json:"until"`
}

// New makes a join token that is good for one certificate of a workload, until a time.
// Only the caller gets it; the store has its hash.
func New(ctx context.Context, s Store, namespace, account string, until time.Time) (string, error) {
	// The trust domain is that of the CA that takes the token.
	if _, err := spiffe.New("any", namespace, account); err != nil {
		return "", err
	}
	return keep(ctx, s, Grant{Namespace: namespace, ServiceAccount: account, Until: until.UTC()})
}

// NewServing is New for one certificate of a server with these DNS names (CA-11).
func NewServing(ctx context.Context, s Store, names []string, until time.Time) (string, error) {
	if err := CheckNames(names); err != nil {
		return "", err
	}
	return keep(ctx, s, Grant{Serving: names, Until: until.UTC()})
}

// maxNames is how many DNS names a server's certificate may have.
const maxNames = 8

// label matches a label of a DNS name, as it is compared: in lower case.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckNames returns why texts are no DNS names of a server: each is one host in lower
// case, without a star, and no address.
func CheckNames(names []string) error {
	if len(names) == 0 || len(names) > maxNames {
		return fmt.Errorf("a server's certificate has 1 to %d DNS names, and these are %d", maxNames, len(names))
	}
	for i, name := range names {
		_, notAddress := netip.ParseAddr(name)
		valid := len(name) <= 253 && notAddress != nil
		for part := range strings.SplitSeq(name, ".") {
			valid = valid && label.MatchString(part)
		}
		switch {
		case !valid:
			return fmt.Errorf("%q is no DNS name of a host: want one in lower case, without a star, and no address", name)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("%q is named twice", name)
		}
	}
	return nil
}

// keep makes a token and keeps its grant.
func keep(ctx context.Context, s Store, g Grant) (string, error) {
	until := g.Until
	switch lasts := time.Until(until); {
	case lasts <= 0:
		return "", fmt.Errorf("a join token until %s would have ended already", until.UTC().Format(time.RFC3339))
	case lasts > MaxTTL:
		return "", fmt.Errorf("a join token until %s would last longer than %s: give a shorter time", until.UTC().Format(time.RFC3339), MaxTTL)
	}
	secret := make([]byte, size)
	if _, err := rand.Read(secret); err != nil {
		return "", err
	}
	value, err := json.Marshal(g)
	if err != nil {
		return "", err
	}
	token := prefix + base64.RawURLEncoding.EncodeToString(secret)
	if err := s.Create(ctx, Key(token), value, until); err != nil {
		return "", fmt.Errorf("keep the join token: %w", err)
	}
	return token, nil
}

// Is reports whether a bearer token has the form of a join token.
func Is(token string) bool { return strings.HasPrefix(token, prefix) }

// Key returns the key of a token in a Store: its SHA-256 in hex. The token is random,
// so a slow hash would add nothing.
func Key(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
