// Package jointoken makes join tokens and keeps what they are good for: one
// certificate of one workload, until a time (CA-6). The command line makes them, and a
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

// Grant is what a token is good for: one certificate of this workload.
type Grant struct {
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"serviceAccount"`
	Until          time.Time `json:"until"`
}

// New makes a join token that is good for one certificate of a workload, until a time.
// Only the caller gets it; the store has its hash.
func New(ctx context.Context, s Store, namespace, account string, until time.Time) (string, error) {
	// The trust domain is that of the CA that takes the token.
	if _, err := spiffe.New("any", namespace, account); err != nil {
		return "", err
	}
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
	value, err := json.Marshal(Grant{namespace, account, until.UTC()})
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
