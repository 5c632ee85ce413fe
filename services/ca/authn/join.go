package authn

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/jointoken"
)

// Join authenticates by join tokens.
type Join struct {
	store       jointoken.Store
	trustDomain string
}

// NewJoin returns the authenticator.
func NewJoin(trustDomain string, s jointoken.Store) *Join { return &Join{s, trustDomain} }

// Name implements Authenticator.
func (*Join) Name() string { return "join-token" }

// Takes implements Authenticator.
func (*Join) Takes(c Credentials) bool { return jointoken.Is(c.Token) }

// Authenticate implements Authenticator. The token is spent later, by Proof.Spend, so
// that an invalid certificate request does not cost it.
func (j *Join) Authenticate(ctx context.Context, c Credentials) (*Proof, error) {
	key := jointoken.Key(c.Token)
	value, revision, err := j.store.Get(ctx, key)
	if err != nil {
		return nil, refuseToken(err)
	}
	var g jointoken.Grant
	if err := json.Unmarshal(value, &g); err != nil {
		return nil, refuse(codes.Unavailable, err, "the join token's entry cannot be read")
	}
	if !time.Now().Before(g.Until) {
		return nil, refuse(codes.Unauthenticated, nil, "the join token ended at %s: make another one", g.Until.Format(time.RFC3339))
	}
	p := &Proof{Serving: g.Serving}
	switch {
	case len(g.Serving) == 0:
		p.ID, err = identity(j.trustDomain, g.Namespace, g.ServiceAccount)
	case g.Namespace != "" || g.ServiceAccount != "":
		err = refuse(codes.PermissionDenied, nil, "the join token is for a workload and for a server: make one for each")
	default:
		if names := jointoken.CheckNames(g.Serving); names != nil {
			err = refuse(codes.PermissionDenied, names, "the join token names no server")
		}
	}
	if err != nil {
		return nil, err
	}
	p.Facts = map[string]string{"token-sha256": key}
	p.spend = func(ctx context.Context) error {
		if err := j.store.Delete(ctx, key, revision); err != nil {
			return refuseToken(err)
		}
		return nil
	}
	return p, nil
}

func refuseToken(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(codes.Unauthenticated, nil, "the join token is unknown, spent or has ended: make another one")
	}
	return refuse(codes.Unavailable, err, "the join tokens cannot be read now")
}
