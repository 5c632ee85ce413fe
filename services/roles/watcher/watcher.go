// Package watcher runs a watcher in a process: it connects the watcher to the bus,
// the log and the leader, and reports its state.
package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// Options configures Run.
type Options struct {
	Domain string
	Shard  ident.Shard
	// Identity names what the watcher reads, such as a datacenter; empty: nothing does.
	Identity string
	// Holder names this process. It is stable over restarts, and different from
	// the standby's.
	Holder  string
	Watcher watcher.Watcher
	Connect func(context.Context) (*bus.Conn, error)
	Process *process.Process
	// LogShare is how much of the log the records of the shard may take, in percent;
	// 0: the default.
	LogShare int
	// Registry is the status of a watcher of a registry; nil for other sources.
	Registry *registry.Status
	// Keys answers requests for private keys; nil: the watcher answers none.
	Keys *Keys
	// Optional: the process is ready without this watcher, one of several that come
	// and go.
	Optional bool
}

// Run watches until ctx is done.
func Run(ctx context.Context, o Options) error {
	w := &running{Options: o}
	w.state.Store(&watcher.State{})
	logger := o.Process.Log.With(process.Component, "watcher")
	admin, condition, page := o.Process.Admin, "watcher "+o.Shard.String(), "watcher-"+o.Shard.Source+"-"+o.Shard.Instance
	if o.Optional {
		admin.Warn(condition, w.ready)
	} else {
		admin.Ready(condition, w.ready)
	}
	admin.Report(page, func() any { return w.report() })
	defer admin.Forget(condition, page)

	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	w.nc.Store(nc)
	fleet := bus.NewFleet(nc, o.Domain, logger)
	connection := append(bus.ConnMetrics(condition, nc), fleet.Metrics(condition)...)
	admin.Register(connection...)
	defer admin.Unregister(connection...)

	log, err := bus.Retry(ctx, logger.With("shard", o.Shard.String()), func(ctx context.Context) (*natslog.Log, error) {
		return openLog(ctx, nc, o.Domain, o.Shard)
	})
	if err != nil {
		return err
	}
	defer log.Close()

	metrics := watcher.NewMetrics(o.Shard)
	admin.Register(metrics)
	defer admin.Unregister(metrics)
	if o.Registry != nil {
		admin.Register(o.Registry)
		defer admin.Unregister(o.Registry)
	}
	reporter := fleet.WatcherReporter(o.Holder, o.Shard, w.report)
	requests := make(chan string, 1)
	keys, err := o.Keys.stage(nc, fleet, o, logger)
	if err != nil {
		return err
	}
	return process.RunStages(ctx,
		// Reads the source and publishes its changes.
		process.Stage{func(ctx context.Context) error {
			return watcher.Run(ctx, watcher.Config{
				Shard: o.Shard, Holder: o.Holder, Identity: o.Identity, Watcher: o.Watcher, Leader: fleet,
				Log:         &watcher.Limited{Log: log, Shard: o.Shard, Percent: cmp.Or(o.LogShare, DefaultSettings().LogShare), Usage: usage{log, fleet}},
				Permissions: w,
				Logger:      logger, ListingRequests: requests, Metrics: metrics, Tracer: tracing.New(o.Process.Traces, "watcher"),
				OnState: func(s watcher.State) { w.state.Store(&s); reporter.Changed() },
			})
		}},
		process.Stage{
			// Takes the leader's requests for a new listing.
			func(ctx context.Context) error {
				return fleet.ListingRequests(ctx, o.Shard, func(r *reportv1.ListingRequest) { w.request(r, requests) })
			},
			reporter.Run,
		},
		keys,
	)
}

// usage asks the bus how full the log is, and the builders what the shard takes.
type usage struct {
	log   *natslog.Log
	fleet *bus.Fleet
}

func (u usage) Log(ctx context.Context) (bytes, most uint64, err error) {
	bytes, most, _, err = u.log.Usage(ctx)
	return bytes, most, err
}

func (u usage) Shard(ctx context.Context, s ident.Shard) (uint64, error) {
	return u.fleet.LogBytes(ctx, s)
}

// openLog opens the log, and fails until a builder has begun it: the watcher would
// have to repeat a listing from before the first epoch.
func openLog(ctx context.Context, nc *bus.Conn, domain string, shard ident.Shard) (*natslog.Log, error) {
	log, err := natslog.Open(ctx, nc, natslog.Options{Domain: domain, Shard: &shard})
	if err != nil {
		return nil, err
	}
	bounds, err := log.Bounds(ctx)
	if err == nil && bounds.Last == 0 {
		err = errors.New("the log is empty; waiting for a builder to begin it")
	}
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

// running is the state of one Run.
type running struct {
	Options
	nc    atomic.Pointer[bus.Conn]
	state atomic.Pointer[watcher.State]
	asked atomic.Bool // the permissions are known
}

// request passes on a request for a listing, unless it is about an earlier session
// of this watcher, which has listed since. A request about no session, or about
// another watcher's, is for the watcher that holds the lease now.
func (w *running) request(r *reportv1.ListingRequest, requests chan<- string) {
	about, present := r.GetSession(), w.state.Load().Session
	if about != "" && about != present && life(about) == life(present) {
		return
	}
	select {
	case requests <- r.GetReason():
	default: // one is pending; the leader repeats its request
	}
}

// life returns the part of a session's name that a watcher process keeps.
func life(session string) string {
	id, _, _ := strings.Cut(session, "-")
	return id
}

// Permits implements watcher.Permissions.
func (w *running) Permits(ctx context.Context) (func(events.Subject) bool, error) {
	permitted, err := bus.Permitted(ctx, w.nc.Load())
	if err != nil {
		return nil, err
	}
	w.asked.Store(true)
	return func(s events.Subject) bool { return permitted(s.In(w.Domain)) }, nil
}

// reports reports whether an error of the connection is about objects that the
// publisher knows to be refused, and reports until they are permitted or gone.
func (w *running) reports(err error) bool {
	own := strings.TrimSuffix(events.ShardSubjects(w.Shard).In(w.Domain), ">")
	subject, denied := bus.DeniedPublish(err)
	return w.asked.Load() && denied && strings.HasPrefix(subject, own)
}

func (w *running) ready() error {
	nc := w.nc.Load()
	if nc == nil {
		return bus.ErrNotConnected
	}
	if err := bus.Ready(nc); err != nil && !w.reports(err) {
		return err
	}
	switch s := w.state.Load(); s.Phase {
	case watcher.PhaseFollowing, watcher.PhaseStandby:
		return nil
	case "":
		return errors.New("waiting for a builder to begin the log")
	default:
		return fmt.Errorf("is %s", s.Phase)
	}
}

func (w *running) report() *reportv1.WatcherReport {
	s := w.state.Load()
	r := &reportv1.WatcherReport{
		Source: w.Shard.Source, Instance: w.Shard.Instance, Holder: w.Holder, Build: w.Process.Build,
		Time: timestamppb.Now(), State: string(s.Phase), Session: s.Session,
		Keys: uint64(s.Keys), Partial: s.Partial, Pending: uint64(s.Pending),
	}
	if !s.Listed.IsZero() {
		r.Listed = timestamppb.New(s.Listed)
	}
	if !s.Down.IsZero() {
		r.Down = timestamppb.New(s.Down)
	}
	if !s.Changed.IsZero() {
		r.Changed = timestamppb.New(s.Changed)
	}
	if w.Registry != nil {
		r.Registry = w.Registry.Report()
	}
	for _, d := range s.Diagnostics {
		r.Diagnostics = append(r.Diagnostics, d.Proto())
	}
	return r
}
