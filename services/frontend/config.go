package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

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
	// Listeners take xDS over gRPC. At least one.
	Listeners []net.Listener
	Logger    *slog.Logger
	// Metrics are counted here; nil counts nowhere.
	Metrics *Metrics
	// OnChange is called, from any goroutine, when Report has something new
	// to say. It must not block.
	OnChange func()
	Limits   Limits
}

// Limits of a frontend; a zero field is its default.
type Limits struct {
	// StreamsPerSecond is how many new streams are taken in a second, with
	// bursts of as many. More are refused with UNAVAILABLE. Default 500.
	StreamsPerSecond int
	// SendTimeout ends a stream whose client takes longer than this to take a
	// response. Default 30 s.
	SendTimeout time.Duration
	// Drain is the time over which streams are ended when Run's context is
	// done. Default 3 s.
	Drain time.Duration
	// Linger is how long a removed cluster stays with a proxy at least; it
	// must be longer than the longest delay that a filter (ext_authz, fault)
	// may cause. Default 30 s.
	Linger time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.StreamsPerSecond == 0 {
		l.StreamsPerSecond = 500
	}
	if l.SendTimeout == 0 {
		l.SendTimeout = 30 * time.Second
	}
	if l.Drain == 0 {
		l.Drain = 3 * time.Second
	}
	if l.Linger == 0 {
		l.Linger = 30 * time.Second
	}
	return l
}

func (c *Config) check() error {
	switch {
	case c.ID == "":
		return errors.New("frontend: ID is empty: give every frontend a name that is stable over restarts")
	case c.Store == nil:
		return errors.New("frontend: Store is nil: give it its own store (bolt, or memstore in tests)")
	case len(c.Listeners) == 0:
		return errors.New("frontend: no Listeners: listen before New")
	case c.Logger == nil:
		return errors.New("frontend: Logger is nil")
	}
	return nil
}
