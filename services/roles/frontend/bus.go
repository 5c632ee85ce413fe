package frontend

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// connectBus connects to the bus, opens chain and reports on it, and reports
// until ctx is done.
func (o *Options) connectBus(ctx context.Context, log *slog.Logger, chain *busChain, reports *busReports) error {
	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	// A builder makes the stream; wait for the first one.
	var feed *natsfeed.Feed
	err = bus.Retry(ctx, log, func(ctx context.Context) error {
		feed, err = natsfeed.Open(ctx, nc, natsfeed.Options{Domain: o.Domain})
		return err
	})
	if err != nil {
		return err
	}
	o.Process.Admin.Register(bus.ConnMetrics("frontend", nc)...)
	// The frontend serves without a bus, so it stays ready.
	o.Process.Admin.Warn("bus", func() error { return bus.Ready(nc) })
	fleet := bus.NewFleet(nc, o.Domain, log)
	reporter := fleet.FrontendReporter(o.ID, reports.report)
	reports.reporter.Store(reporter)
	chain.open(nc, feed)
	return process.RunStages(ctx, process.Stage{
		reporter.Run,
		func(ctx context.Context) error { return fleet.ServeProxies(ctx, o.ID, reports.proxy) },
		// Ticks of the leader tell the head, in case a message was lost, and what
		// proxies of other frontends reject.
		func(ctx context.Context) error {
			return fleet.Ticks(ctx, func(t *reportv1.Tick) {
				head := store.VersionOf(t.GetHead())
				feed.Hint(head, t.GetVersionsSeq())
				reports.head(head)
				reports.suspects(t.GetSuspects())
			})
		},
	})
}

// busChain is the version chain of a bus that may not be connected yet: its
// methods wait, so that the frontend starts without a bus.
type busChain struct {
	ready chan struct{} // closed once the rest is set
	nc    *bus.Conn
	feed  *natsfeed.Feed
}

func newBusChain() *busChain { return &busChain{ready: make(chan struct{})} }

// open is called once.
func (c *busChain) open(nc *bus.Conn, feed *natsfeed.Feed) {
	c.nc, c.feed = nc, feed
	close(c.ready)
}

func (c *busChain) wait(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Follow implements store.Chain.
func (c *busChain) Follow(ctx context.Context) (store.Follower, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	return c.feed.Follow(ctx)
}

// Fetch implements store.Chain.
func (c *busChain) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	if err := c.wait(ctx); err != nil {
		return store.Stored{}, err
	}
	return c.feed.Fetch(ctx, v)
}

// History implements store.Chain.
func (c *busChain) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		if err := c.wait(ctx); err != nil {
			yield(nil, err)
			return
		}
		c.feed.History(ctx)(yield)
	}
}

var errAway = errors.New("the bus is not connected")

// Head asks for the chain's head. It fails at once if the bus is not connected.
func (c *busChain) Head(ctx context.Context) (store.Head, error) {
	if !c.connected() {
		return store.Head{}, errAway
	}
	return c.feed.Head(ctx)
}

func (c *busChain) connected() bool {
	select {
	case <-c.ready:
		return c.nc.IsConnected()
	default:
		return false
	}
}

// busReports hands changes to a reporter that may not exist yet; a new reporter
// reports everything.
type busReports struct {
	head     func(ident.Position)      // sets the chain's head
	suspects func([]*reportv1.Suspect) // sets what the leader suspects
	report   func(summary bool) *reportv1.FrontendReport
	proxy    func(id string) []*reportv1.ProxyReply
	reporter atomic.Pointer[bus.Reporter]
}

func (r *busReports) changed(urgent bool) {
	switch reporter := r.reporter.Load(); {
	case reporter == nil:
	case urgent:
		reporter.Urgent()
	default:
		reporter.Changed()
	}
}
