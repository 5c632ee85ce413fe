package ca

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/mesh/spiffe"
)

// Config is the configuration of a Server. Limits, Audit and Metrics may be left out.
type Config struct {
	// Listeners are the ports; all have TLS.
	Listeners []net.Listener
	// TLS has the server's certificate. Clients may show one too, or not.
	TLS *tls.Config
	// TrustDomain is that of each certificate.
	TrustDomain string
	// Authority returns the authority in use.
	Authority func() *signer.Authority
	// Authenticators decide who a caller is.
	Authenticators authn.Set
	// MaxTTL is the longest time for which a certificate is issued. Zero means signer.MaxTTL.
	MaxTTL time.Duration
	// Limits protect the server from its clients.
	Limits Limits
	// Audit is called for each certificate before the client gets it, and for each
	// refused request; not for those beyond the limits, which would flood it. If it
	// fails, the client does not get the certificate.
	Audit func(context.Context, Record) error
	// Metrics are the server's; its caller registers them.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Limits protect a Server. Zero means the default.
type Limits struct {
	// PerSecond is how many connections and requests of one address begin in a
	// second; five times as many may begin at once.
	PerSecond int
	// Connections is how many connections one address may have.
	Connections int
	// PerAddress is how many requests of one address are handled at once, and AtOnce
	// how many of all.
	PerAddress, AtOnce int
}

// Defaults of Limits. One address may be a machine with many pods.
const (
	defaultPerSecond   = 50
	defaultConnections = 250
	defaultPerAddress  = 50
	defaultAtOnce      = 500
)

func (c *Config) check() error {
	switch {
	case len(c.Listeners) == 0:
		return errors.New("ca: there is no port to listen on")
	case c.TLS == nil:
		return errors.New("ca: there is no certificate for the port: tokens are never sent without TLS")
	case c.Authority == nil:
		return errors.New("ca: there is no authority that signs")
	case len(c.Authenticators) == 0:
		return errors.New("ca: no authenticator is set, so every request would be refused")
	case c.Logger == nil:
		return errors.New("ca: there is no log")
	}
	if err := spiffe.CheckTrustDomain(c.TrustDomain); err != nil {
		return err
	}
	for _, limit := range []struct {
		at        *int
		otherwise int
	}{
		{&c.Limits.PerSecond, defaultPerSecond}, {&c.Limits.Connections, defaultConnections},
		{&c.Limits.PerAddress, defaultPerAddress}, {&c.Limits.AtOnce, defaultAtOnce},
	} {
		if *limit.at == 0 {
			*limit.at = limit.otherwise
		}
	}
	if c.MaxTTL == 0 {
		c.MaxTTL = signer.MaxTTL
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
	if c.Audit == nil {
		c.Audit = func(context.Context, Record) error { return nil }
	}
	return nil
}

// Record is what the audit has of a request (CA-9). Nothing in it is a secret.
type Record struct {
	Time    time.Time
	Address string // of the client
	// Code is codes.OK if a certificate was issued. Reason is why it was refused.
	Code   codes.Code
	Reason string
	// Identity is zero, and Authenticator empty, if the caller was not authenticated. A
	// server has DNS names instead of an identity (CA-11).
	Identity      spiffe.ID
	Serving       []string
	Authenticator string
	Facts         map[string]string
	// KeyHash is the SHA-256 of the public key in hex; empty if the request has none.
	KeyHash string
	// Serial and Ends are those of the issued certificate.
	Serial string
	Ends   time.Time
}

// For returns the identity or the names of an authenticated caller.
func (r Record) For() string {
	if len(r.Serving) > 0 {
		return "server " + strings.Join(r.Serving, ",")
	}
	return r.Identity.String()
}

// MarshalJSON implements json.Marshaler.
func (r Record) MarshalJSON() ([]byte, error) {
	out := struct {
		Time          time.Time         `json:"time"`
		Address       string            `json:"address"`
		Code          string            `json:"code"`
		Reason        string            `json:"reason,omitempty"`
		Identity      string            `json:"identity,omitempty"`
		Serving       []string          `json:"serving,omitempty"`
		Authenticator string            `json:"authenticator,omitempty"`
		Facts         map[string]string `json:"facts,omitempty"`
		KeyHash       string            `json:"keySHA256,omitempty"`
		Serial        string            `json:"serial,omitempty"`
		Ends          time.Time         `json:"ends,omitzero"`
	}{r.Time, r.Address, r.Code.String(), r.Reason, "", r.Serving, r.Authenticator, r.Facts, r.KeyHash, r.Serial, r.Ends}
	if r.Identity != (spiffe.ID{}) {
		out.Identity = r.Identity.String()
	}
	return json.Marshal(out)
}
