package frontend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/store"
)

// Config configures a frontend. The caller owns everything in it and closes
// it after Run has returned; Run closes the listeners.
type Config struct {
	// ID names this frontend in reports, stable over restarts.
	ID string
	// Build names the program in reports.
	Build string
	// Label is put before every version that clients are sent, so that what they have
	// cannot be mistaken for the present mesh; empty: nothing. A stream without a label
	// never takes a labelled version for one of its own.
	Label string
	// Store is the frontend's own replica. The frontend is its only writer.
	Store store.Store
	// Chain is followed for new versions; nil serves what Store has.
	Chain store.Chain
	// Head reads the head of the chain, so that a client that names versions
	// unknown here is not sent older ones; nil: the bus counts as away. It can be
	// store.Publisher's method.
	Head func(context.Context) (store.Head, error)
	// Connected reports whether the bus is connected, for reports; nil: it is
	// if Chain is set.
	Connected func() bool
	// Away returns since when the version chain cannot be followed, and why, for
	// reports; no error: it can. nil: that is not known.
	Away func() (since time.Time, err error)
	// Keys are the private keys that the frontend may serve; nil: none. The caller runs
	// it beside the frontend.
	Keys *keys.Store
	// Audit takes a record of each private key that a proxy was given (KEY-13). It does
	// not wait for the bus. nil: nothing takes them.
	Audit func(*auditv1.Record)
	// Listeners take xDS over gRPC, TLSListeners over TLS as TLS says. At least
	// one is needed. If TLS asks for client certificates, a client may only use
	// the namespace and service account in its certificate.
	Listeners, TLSListeners []net.Listener
	TLS                     *tls.Config
	// SinkListeners take MCP-over-xDS, with TLS if SinkTLS says so; none: it is not
	// served.
	SinkListeners []net.Listener
	SinkTLS       *tls.Config
	// MeshClients: TLSListeners take only clients with a certificate under a root in the
	// TrustBundle of the served version, or under one of the client CAs in TLS.
	MeshClients bool
	Logger      *slog.Logger
	// Metrics are counted here; nil: nowhere.
	Metrics *Metrics
	// Tracer makes spans of versions on their way to proxies; nil: none.
	Tracer *tracing.Tracer
	// OnChange is called, from any goroutine, when Report has changed; urgent:
	// report it at once. It must not block.
	OnChange func(urgent bool)
	Limits   Limits
}

// Limits of a frontend. Begin with DefaultLimits; those that are not documented
// otherwise must be positive.
type Limits struct {
	// StreamsPerSecond is how many new streams begin in a second, with bursts
	// of as many. More wait, resuming clients before new ones, and are refused
	// with UNAVAILABLE if they would wait too long.
	StreamsPerSecond int
	// StreamsPerAddress is how many streams, and how many connections, the clients
	// behind one address may have, an IPv4 address or a /64 of IPv6, and
	// StreamsPerIdentity how many streams those whose certificates have one
	// identity; 0: no limit. More are refused with UNAVAILABLE.
	StreamsPerAddress  int
	StreamsPerIdentity int
	// Classes is for how many classes of proxies, counted for each type of
	// resource, resources are kept; 0: no limit. A proxy that would need more is
	// refused with UNAVAILABLE. Those behind one limited address, or with one limited
	// identity, have a tenth.
	Classes int
	// FirstAnswers is how many streams may be in their first responses at a
	// time: sent and not acknowledged, for 250 ms at most. More wait in the
	// same way.
	FirstAnswers int
	// SendTimeout ends a stream whose client takes longer than this to accept a
	// response.
	SendTimeout time.Duration
	// MaxAge ends a stream at that age, give or take a tenth, so that clients
	// spread over the frontends again; 0: never. The next stream of a client
	// costs next to nothing.
	MaxAge time.Duration
	// Drain is the time over which streams are ended when Run's context is
	// done.
	Drain time.Duration
	// Linger is how long a removed cluster stays with a proxy at least; it must
	// be longer than the longest delay that a filter (ext_authz, fault) may
	// cause.
	Linger time.Duration
}

// DefaultLimits serve proxies that connect at once as fast as without limits,
// and delay a change for connected proxies to at most twice the time.
func DefaultLimits() Limits {
	return Limits{
		StreamsPerSecond:   1000,
		FirstAnswers:       32,
		StreamsPerAddress:  2500,
		StreamsPerIdentity: 5000,
		Classes:            4000,
		SendTimeout:        30 * time.Second,
		MaxAge:             30 * time.Minute,
		Drain:              3 * time.Second,
		Linger:             30 * time.Second,
	}
}

func (c *Config) check() error {
	switch {
	case c.ID == "":
		return errors.New("frontend: ID is empty: give every frontend a name that is stable over restarts")
	case c.Store == nil:
		return errors.New("frontend: Store is nil: give it its own store (bolt, or memstore in tests)")
	case len(c.Listeners)+len(c.TLSListeners) == 0:
		return errors.New("frontend: no Listeners: listen before New")
	case len(c.TLSListeners) > 0 && c.TLS == nil:
		return errors.New("frontend: TLSListeners without TLS")
	case c.MeshClients && c.TLS == nil:
		return errors.New("frontend: MeshClients without TLS")
	case c.Logger == nil:
		return errors.New("frontend: Logger is nil")
	}
	l := c.Limits
	if l.StreamsPerSecond <= 0 || l.FirstAnswers <= 0 || min(l.SendTimeout, l.Drain, l.Linger) <= 0 ||
		l.MaxAge < 0 || min(l.StreamsPerAddress, l.StreamsPerIdentity, l.Classes) < 0 {
		return fmt.Errorf("frontend: Limits %+v: all but MaxAge, Classes and the streams of an address and of an identity must be positive; begin with DefaultLimits", l)
	}
	return nil
}
