package frontend

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// connectBus connects to the bus, opens link, and reports until ctx is done.
func (o *Options) connectBus(ctx context.Context, log *slog.Logger, link *busLink, server *frontend.Server) error {
	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	// A builder makes the stream; wait for the first one.
	feed, err := bus.Retry(ctx, log, func(ctx context.Context) (*natsfeed.Feed, error) {
		return natsfeed.Open(ctx, nc, natsfeed.Options{Domain: o.Domain, Foreign: link.foreign.add})
	})
	if err != nil {
		return err
	}
	o.Process.Admin.Register(bus.ConnMetrics("frontend", nc)...)
	fleet := bus.NewFleet(nc, o.Domain, log)
	o.Process.Admin.Register(fleet.Metrics("frontend")...)
	reporter := fleet.FrontendReporter(o.ID, func(summary bool) *reportv1.FrontendReport {
		if summary {
			return server.Summary()
		}
		return server.Report()
	})
	link.reporter.Store(reporter)
	writer, err := audit.NewWriter(nc, audit.WriterOptions{Domain: o.Domain, Role: bus.Frontend(), Process: o.ID, Log: log})
	if err != nil {
		return err
	}
	link.audit.open(writer)
	link.fleet.Store(fleet)
	link.open(nc, feed)
	return process.RunStages(ctx, process.Stage{
		reporter.Run,
		writer.Run,
		func(ctx context.Context) error { return fleet.ServeProxies(ctx, o.ID, server.Proxy) },
		func(ctx context.Context) error { return fleet.ServeDrains(ctx, o.ID, server.Drain) },
		// Ticks of the leader tell the head, in case a message was lost, and what
		// proxies of other frontends reject.
		func(ctx context.Context) error {
			return fleet.Ticks(ctx, func(t *reportv1.Tick) {
				head := store.VersionOf(t.GetHead())
				feed.Hint(head, t.GetVersionsSeq())
				server.HeadIs(head)
				server.Suspects(t.GetSuspects())
			})
		},
	})
}

// busLink is the version chain and the reporter of a bus that may not be
// connected yet: Follow waits for it, so that the frontend starts without a bus.
type busLink struct {
	ready    chan struct{} // closed once nc and Feed are set
	nc       *bus.Conn
	reporter atomic.Pointer[bus.Reporter] // nil: none yet; a new one reports everything
	fleet    atomic.Pointer[bus.Fleet]    // nil: none yet
	audit    records
	foreign  *foreign
	*natsfeed.Feed
}

// open is called once.
func (l *busLink) open(nc *bus.Conn, feed *natsfeed.Feed) {
	l.nc, l.Feed = nc, feed
	close(l.ready)
}

// Follow implements store.Chain. The other methods of a Chain are called after
// it has returned.
func (l *busLink) Follow(ctx context.Context) (store.Follower, error) {
	select {
	case <-l.ready:
		return l.Feed.Follow(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var errAway = errors.New("the bus is not connected")

// Head asks for the chain's head. It fails at once if the bus is not connected.
func (l *busLink) Head(ctx context.Context) (store.Head, error) {
	if !l.connected() {
		return store.Head{}, errAway
	}
	return l.Feed.Head(ctx)
}

func (l *busLink) connected() bool {
	select {
	case <-l.ready:
		return l.nc.IsConnected()
	default:
		return false
	}
}

// changed tells the reporter that the frontend's report has changed.
func (l *busLink) changed(urgent bool) {
	switch reporter := l.reporter.Load(); {
	case reporter == nil:
	case urgent:
		reporter.Urgent()
	default:
		reporter.Changed()
	}
}
