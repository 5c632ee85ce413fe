package authn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
)

// Limits of requests to an issuer. A token with an unknown key ID causes one, so
// anyone can; keys that are known need none.
const (
	issuerTimeout = 5 * time.Second
	issuerBody    = 1 << 20
	issuerEvery   = 2 * time.Second
	issuerBurst   = 5
)

// algorithms are those whose keys an issuer may publish: with a symmetric one, its
// public key could be taken for a secret, and "none" proves nothing.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// OIDCConfig is one issuer of tokens, and what its tokens are good for.
type OIDCConfig struct {
	// Issuer is its https URL, which tokens have as iss.
	Issuer string
	// Audience must be in a token's aud.
	Audience string
	// Algorithms may sign tokens; none: RS256 and ES256.
	Algorithms []string
	// Namespace and ServiceAccount are templates: a name, or one claim in braces, as
	// in {/kubernetes.io/namespace}.
	Namespace, ServiceAccount string
	// Claims must have these values. A public issuer gives tokens to everyone.
	Claims map[string]string
	// Transport reaches the issuer; nil: http.DefaultTransport.
	Transport http.RoundTripper
}

// OIDC authenticates by tokens of an OIDC issuer.
type OIDC struct {
	trustDomain        string
	cfg                OIDCConfig
	namespace, account template
	client             *http.Client

	verifier atomic.Pointer[oidc.IDTokenVerifier] // nil until the issuer's metadata is here
	asking   sync.Mutex                           // held while the issuer is asked for it
}

// NewOIDC returns the authenticator of an issuer, which is asked when its first token
// comes: the CA starts without it.
func NewOIDC(trustDomain string, cfg OIDCConfig) (*OIDC, error) {
	o := &OIDC{trustDomain: trustDomain, cfg: cfg}
	if u, err := url.Parse(cfg.Issuer); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("OIDC issuer %q: write an https URL", cfg.Issuer)
	}
	if cfg.Audience == "" {
		return nil, fmt.Errorf("OIDC issuer %s: name the audience, or tokens for any other service would be good here", cfg.Issuer)
	}
	if len(cfg.Algorithms) == 0 {
		o.cfg.Algorithms = []string{oidc.RS256, oidc.ES256}
	}
	for _, a := range cfg.Algorithms {
		if !slices.Contains(algorithms, a) {
			return nil, fmt.Errorf("OIDC issuer %s: algorithm %q is none of %s", cfg.Issuer, a, strings.Join(algorithms, ", "))
		}
	}
	var err error
	if o.namespace, err = parseTemplate(cfg.Namespace); err != nil {
		return nil, fmt.Errorf("OIDC issuer %s: namespace: %w", cfg.Issuer, err)
	}
	if o.account, err = parseTemplate(cfg.ServiceAccount); err != nil {
		return nil, fmt.Errorf("OIDC issuer %s: service account: %w", cfg.Issuer, err)
	}
	if o.namespace.claim == "" && o.account.claim == "" && len(cfg.Claims) == 0 {
		return nil, fmt.Errorf("OIDC issuer %s: every token would get one identity: use a claim in namespace or service account, or require a claim", cfg.Issuer)
	}
	transport := cfg.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	o.client = &http.Client{Timeout: issuerTimeout, Transport: &issuerTransport{transport, rate.NewLimiter(rate.Every(issuerEvery), issuerBurst)}}
	return o, nil
}

// Name implements Authenticator.
func (*OIDC) Name() string { return "oidc" }

// Takes implements Authenticator.
func (o *OIDC) Takes(c Credentials) bool { return issuerOf(c.Token) == o.cfg.Issuer }

// Authenticate implements Authenticator.
func (o *OIDC) Authenticate(ctx context.Context, c Credentials) (*Proof, error) {
	verifier, err := o.metadata(ctx)
	if err != nil {
		return nil, refuse(codes.Unavailable, err, "the issuer %s cannot be asked for its keys now", o.cfg.Issuer)
	}
	token, err := verifier.Verify(ctx, c.Token)
	if err != nil {
		return nil, refuse(codes.Unauthenticated, err, "the token is not valid: it may have ended, be for another audience than %s, or its signature is wrong", o.cfg.Audience)
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return nil, refuse(codes.Unauthenticated, err, "the token's claims cannot be read")
	}
	for name, want := range o.cfg.Claims {
		if got, err := claimOf(claims, name); err != nil || got != want {
			return nil, refuse(codes.PermissionDenied, err, "the token's claim %s is not the one that this CA requires", name)
		}
	}
	namespace, err := o.namespace.of(claims)
	if err != nil {
		return nil, refuse(codes.PermissionDenied, err, "the token names no namespace")
	}
	account, err := o.account.of(claims)
	if err != nil {
		return nil, refuse(codes.PermissionDenied, err, "the token names no service account")
	}
	id, err := identity(o.trustDomain, namespace, account)
	if err != nil {
		return nil, err
	}
	return &Proof{ID: id, Facts: map[string]string{"issuer": token.Issuer, "subject": token.Subject}}, nil
}

// metadata returns what verifies tokens. One request at a time asks the issuer; others
// fail meanwhile, so that an issuer that hangs does not hold them all.
func (o *OIDC) metadata(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	if v := o.verifier.Load(); v != nil {
		return v, nil
	}
	if !o.asking.TryLock() {
		return nil, errors.New("another request asks the issuer at the moment")
	}
	defer o.asking.Unlock()
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, o.client), o.cfg.Issuer)
	if err != nil {
		return nil, err
	}
	v := provider.Verifier(&oidc.Config{ClientID: o.cfg.Audience, SupportedSigningAlgs: o.cfg.Algorithms})
	o.verifier.Store(v)
	return v, nil
}

// issuerTransport sends requests to an issuer: by https only, wherever its metadata
// or a redirect points, not too often, and with responses of a bounded size.
type issuerTransport struct {
	to    http.RoundTripper
	limit *rate.Limiter
}

// RoundTrip implements http.RoundTripper.
func (t *issuerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s is no https URL", r.URL.Redacted())
	}
	if !t.limit.Allow() {
		return nil, errors.New("the issuer was asked too often; try again in a few seconds")
	}
	resp, err := t.to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = limitedBody{http.MaxBytesReader(nil, resp.Body, issuerBody), resp.Body}
	return resp, nil
}

type limitedBody struct {
	io.Reader
	io.Closer
}
