package frontend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/store"
)

// Config is what a frontend needs. The caller owns everything in it and closes
// it after Run has returned; the listeners are closed by Run.
type Config struct {
	// ID names this frontend in reports, stable over restarts.
	ID string
	// Build names the program in reports.
	Build string
	// Store is the frontend's own replica. Nobody else writes to it.
	Store store.Store
	// Chain is followed for new versions; nil serves what Store has.
	Chain store.Chain
	// Head asks the chain's leader for its head, so that a client which names
	// versions unknown here is not sent older ones; nil is like a bus that is
	// away. store.Publisher has such a method.
	Head func(context.Context) (store.Head, error)
	// Connected says whether the bus is connected, for reports; nil: Chain is
	// there.
	Connected func() bool
	// Listeners take xDS over gRPC, TLSListeners over TLS as TLS says. At least
	// one of either. Where TLS asks for clients' certificates, the namespace
	// and service account in one are those of which the client may be.
	Listeners, TLSListeners []net.Listener
	TLS                     *tls.Config
	Logger                  *slog.Logger
	// Metrics are counted here; nil counts nowhere.
	Metrics *Metrics
	// Tracer makes spans of versions on their way to proxies; nil: none.
	Tracer *tracing.Tracer
	// OnChange is called, from any goroutine, when Report has something new
	// to say; it is urgent where the chain was rewound. It must not block.
	OnChange func(urgent bool)
	Limits   Limits
}

// Limits of a frontend. DefaultLimits are those of one that was told nothing;
// all but MaxAge must be positive.
type Limits struct {
	// StreamsPerSecond is how many new streams are taken in a second, with
	// bursts of as many. More wait, those of clients that were served before
	// ahead of new ones, and are refused with UNAVAILABLE if they would wait
	// long.
	StreamsPerSecond int
	// FirstAnswers is how many streams may be at their first answers at a
	// time: sent, and not yet acknowledged, for 250 ms at most. More wait in the
	// same way.
	FirstAnswers int
	// SendTimeout ends a stream whose client takes longer than this to take a
	// response.
	SendTimeout time.Duration
	// MaxAge is after what time a stream is ended, give or take a tenth, so
	// that clients spread over the frontends again; 0: never. The next stream
	// of a client costs next to nothing.
	MaxAge time.Duration
	// Drain is the time over which streams are ended when Run's context is
	// done.
	Drain time.Duration
	// Linger is how long a removed cluster stays with a proxy at least; it
	// must be longer than the longest delay that a filter (ext_authz, fault)
	// may cause.
	Linger time.Duration
}

// DefaultLimits have proxies that come at once served as fast as all at a time
// would be, and a change to those that are there at most twice as late.
func DefaultLimits() Limits {
	return Limits{
		StreamsPerSecond: 1000,
		FirstAnswers:     32,
		SendTimeout:      30 * time.Second,
		MaxAge:           30 * time.Minute,
		Drain:            3 * time.Second,
		Linger:           30 * time.Second,
	}
}

// Check says what is wrong with l.
func (l Limits) Check() error {
	switch {
	case l.StreamsPerSecond <= 0:
		return fmt.Errorf("%d streams per second: give a positive number", l.StreamsPerSecond)
	case l.FirstAnswers <= 0:
		return fmt.Errorf("first answers to %d streams at a time: give a positive number", l.FirstAnswers)
	case l.SendTimeout <= 0:
		return fmt.Errorf("a send timeout of %s: give a positive time", l.SendTimeout)
	case l.MaxAge < 0:
		return fmt.Errorf("a greatest stream age of %s: give a positive time, or 0 for streams that do not age", l.MaxAge)
	case l.Drain <= 0:
		return fmt.Errorf("a drain of %s: give a positive time", l.Drain)
	case l.Linger <= 0:
		return fmt.Errorf("a linger of %s: give a positive time", l.Linger)
	}
	return nil
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
	case c.Logger == nil:
		return errors.New("frontend: Logger is nil")
	}
	if err := c.Limits.Check(); err != nil {
		return fmt.Errorf("frontend: %w; begin with DefaultLimits", err)
	}
	return nil
}
