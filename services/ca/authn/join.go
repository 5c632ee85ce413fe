package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/mesh/spiffe"
)

// tokenPrefix begins each join token, so that scanners for secrets find one that was
// published by mistake.
const tokenPrefix = "meshlog-join-"

// tokenBytes is the randomness of a join token: 256 bits (CA-6).
const tokenBytes = 32

// ErrNoToken says that a store has no such token, or not any more.
var ErrNoToken = errors.New("no such join token, or it is spent")

// Store keeps join tokens for all replicas of a CA. Keys are hashes, so what is kept
// is no token. The methods are those of a NATS key-value bucket.
type Store interface {
	// Create keeps a value until a time. An existing key is an error.
	Create(ctx context.Context, key string, value []byte, until time.Time) error
	// Get returns a value and its revision, or ErrNoToken.
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	// Delete deletes a key if it has this revision, durably. Of several callers one
	// succeeds, and the others get ErrNoToken.
	Delete(ctx context.Context, key string, revision uint64) error
}

// grant is what a token is good for: one certificate of this workload.
type grant struct {
	Namespace      string    `json:"namespace"`
	ServiceAccount string    `json:"serviceAccount"`
	Until          time.Time `json:"until"`
}

// NewToken makes a join token that is good for one certificate of a workload, until a
// time. Only the caller gets it; the store has its hash.
func NewToken(ctx context.Context, s Store, namespace, account string, until time.Time) (string, error) {
	// The trust domain is that of the CA that takes the token.
	if _, err := spiffe.New("any", namespace, account); err != nil {
		return "", err
	}
	if !until.After(time.Now()) {
		return "", fmt.Errorf("a join token until %s would have ended already", until.UTC().Format(time.RFC3339))
	}
	secret := make([]byte, tokenBytes)
	if _, err := rand.Read(secret); err != nil {
		return "", err
	}
	value, err := json.Marshal(grant{namespace, account, until.UTC()})
	if err != nil {
		return "", err
	}
	token := tokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
	if err := s.Create(ctx, tokenKey(token), value, until); err != nil {
		return "", fmt.Errorf("keep the join token: %w", err)
	}
	return token, nil
}

// tokenKey returns the key of a token: its SHA-256 in hex. The token is random, so a
// slow hash would add nothing.
func tokenKey(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Join authenticates by join tokens.
type Join struct {
	store       Store
	trustDomain string
}

// NewJoin returns the authenticator.
func NewJoin(trustDomain string, s Store) *Join { return &Join{s, trustDomain} }

// Name implements Authenticator.
func (*Join) Name() string { return "join-token" }

// Takes implements Authenticator.
func (*Join) Takes(c Credentials) bool { return strings.HasPrefix(c.Token, tokenPrefix) }

// Authenticate implements Authenticator. The token is spent later, by Proof.Spend, so
// that an invalid certificate request does not cost it.
func (j *Join) Authenticate(ctx context.Context, c Credentials) (*Proof, error) {
	key := tokenKey(c.Token)
	value, revision, err := j.store.Get(ctx, key)
	if err != nil {
		return nil, refuseToken(err)
	}
	var g grant
	if err := json.Unmarshal(value, &g); err != nil {
		return nil, refuse(codes.Unavailable, err, "the join token's entry cannot be read")
	}
	if !time.Now().Before(g.Until) {
		return nil, refuse(codes.Unauthenticated, nil, "the join token ended at %s: make another one", g.Until.Format(time.RFC3339))
	}
	id, err := identity(j.trustDomain, g.Namespace, g.ServiceAccount)
	if err != nil {
		return nil, err
	}
	return &Proof{
		ID: id, Facts: map[string]string{"token-sha256": key},
		spend: func(ctx context.Context) error {
			if err := j.store.Delete(ctx, key, revision); err != nil {
				return refuseToken(err)
			}
			return nil
		},
	}, nil
}

func refuseToken(err error) error {
	if errors.Is(err, ErrNoToken) {
		return refuse(codes.Unauthenticated, nil, "the join token is unknown, spent or has ended: make another one")
	}
	return refuse(codes.Unavailable, err, "the join tokens cannot be read now")
}
