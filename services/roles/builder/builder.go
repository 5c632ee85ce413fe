// Package builder runs a builder in a process: with its file, the streams that it
// creates, the lease, and its messages to the fleet.
package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/events/natslog"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/builder/shares"
	"meshlog.dev/services/builder/webhook"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
	"meshlog.dev/store/natsfeed"
)

// Options configure Run.
type Options struct {
	Domain string
	// ID names the builder, stable over restarts.
	ID string
	// Data is the data directory; process.VersionsFile names the builder's
	// file in it.
	Data string
	// Replicas is the number of servers that store the streams: 1, or 3 on a cluster.
	Replicas int
	Settings
	Connect func(context.Context) (*bus.Conn, error)
	Process *process.Process
}

// keptVersions is how many versions stay in the builder's own file.
const keptVersions = 1024

// Run builds, or stands by, until ctx is done.
func Run(ctx context.Context, o Options) error {
	log := o.Process.Log.With(process.Component, "builder")
	o.Process.Admin.Ready("builder", func() error { return bus.ErrNotConnected })

	// The file is a cache of published versions and of the fold.
	file := process.VersionsFile(o.Data, "builder")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return process.DataError(fmt.Errorf("data directory: %w", err))
	}
	versions, damaged, err := bolt.Open(file, store.Retention{Versions: keptVersions, Age: o.History})
	if err != nil {
		return process.DataError(err)
	}
	defer versions.Close()
	if damaged != nil {
		log.Warn("the builder starts from the bus", "file", file, "reason", damaged)
	}

	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	o.Process.Admin.Register(process.FileMetric("builder", file))
	o.Process.Admin.Register(bus.ConnMetrics("builder", nc)...)
	keep := &keeper{o: &o, nc: nc, log: log}
	chain, err := (&opening{o: &o, nc: nc, log: log}).run(ctx, keep.open)
	if err != nil {
		return err
	}
	defer keep.events.Close()
	return o.build(ctx, nc, builder.Config{
		ID: o.ID, Build: o.Process.Build, Log: keep.events, Feed: chain, Store: versions,
		Judge: fold.KindJudge{Trial: trial.Problems}, History: o.History, Logger: log,
		Tracer: tracing.New(o.Process.Traces, "builder"),
	}, keep, &sweeper{log: keep.events, chain: chain, history: o.History, logger: log})
}

// build runs a builder on a bus, with its messages to and from the fleet.
func (o *Options) build(ctx context.Context, nc *bus.Conn, c builder.Config, keep *keeper, sweeper *sweeper) error {
	log, fleet := c.Logger, bus.NewFleet(nc, o.Domain, c.Logger)
	c.Fleet = fleet
	lease, err := bus.NewLease(nc, bus.LeaseOptions{Domain: o.Domain, Holder: o.ID, Log: log})
	if err != nil {
		return err
	}
	streams, err := bus.NewStreamMetrics(nc, log, natslog.Stream, natsfeed.Stream, "OBJ_"+natsfeed.BlobBucket, audit.Stream)
	if err != nil {
		return err
	}
	ticks := make(chan *reportv1.Tick, 1)
	held := make(chan bool, 1)
	var reporter *bus.Reporter
	metrics := builder.NewMetrics()
	count := &shareCount{log: keep.events, shares: shares.New(), logger: log}
	o.Process.Admin.Register(append(fleet.Metrics("builder"), metrics, streams, count.shares)...)
	b := builder.New(builder.Options{
		Config: c,
		Lease:  held, Resign: lease.Resign, Ticks: ticks, Metrics: metrics,
		Changed: func() { reporter.Changed() },
		Offer:   fleet.OfferIssuers,
		Extend:  count.shares.Report,
	})
	keep.epoch, keep.lost = func() uint64 { return b.Report().GetPosition().GetEpoch() }, b.BlobsLost
	peers := bus.NewPeers(fleet)
	reporter = fleet.BuilderReporter(o.ID, peers, b.Report)
	o.Process.Admin.Ready("builder", func() error { return cmp.Or(bus.Ready(nc), ready(b.Report())) })
	o.Process.Admin.Report("builder", func() any { return b.Report() })
	o.Process.Admin.Page("fold", "the state of the log as this builder has read it, shard by shard", foldPage(b))
	check := &streamCheck{o: o, nc: nc, log: log}
	o.Process.Admin.Warn("streams", check.warning)
	o.Process.Admin.Warn("attention", func() error { return attention(b.Report()) })
	o.Process.Admin.Page("streams", "settings of the bus's streams that differ from this builder's", check.page)

	hook := webhook.New(webhook.Config{URL: o.Webhook, Domain: o.Domain, Log: log})
	o.Process.Admin.Register(hook)

	return process.RunStages(ctx,
		// Folds the log, and publishes while it leads.
		process.Stage{b.Run},
		process.Stage{
			// Holds the lease, or waits for it; releases it once the builder has ended.
			func(ctx context.Context) error {
				return lease.Run(ctx, func(h bool) { latest(held, h); sweeper.leads.Store(h) })
			},
			// Creates streams again that the bus has lost.
			keep.run,
			// Reports settings of the streams that differ from this builder's.
			check.run,
			// Deletes blobs that no version and no segment names any more.
			sweeper.run,
			// Counts what each shard takes of the log, and answers its watchers with it.
			count.run, count.watch,
			func(ctx context.Context) error { return fleet.ServeLogBytes(ctx, count.shares.Of) },
			// Answers watchers that list with the digests of their shard.
			func(ctx context.Context) error { return fleet.ServeDigests(ctx, b.Digests) },
			// Answers the certificate authority, whether the mesh knows a pod.
			func(ctx context.Context) error { return fleet.ServePods(ctx, b.KnowsPod) },
			// Receives the leader's ticks: up to which record its head is right.
			func(ctx context.Context) error {
				return fleet.Ticks(ctx, func(t *reportv1.Tick) {
					latest(ticks, t)
					sweeper.chain.Hint(store.VersionOf(t.GetHead()), t.GetVersionsSeq())
				})
			},
			// Receives the reports of frontends: that the chain was rewound, and which
			// resources proxies reject.
			func(ctx context.Context) error {
				return fleet.FrontendReports(ctx, func(r *reportv1.FrontendReport) { _ = b.Heard(ctx, r) })
			},
			// Reports its own state, and collects the reports of others.
			reporter.Run,
			peers.Run,
			// Calls the webhook, if there is one.
			func(ctx context.Context) error { return hook.Follow(ctx, b.Report) },
		},
	)
}

// latest puts v into a buffered channel. If the channel is full, v replaces the
// oldest value. Only one goroutine may send on c.
func latest[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}

// every calls f at this interval until ctx is done.
func every(ctx context.Context, interval time.Duration, f func(context.Context)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			f(ctx)
		}
	}
}

// awayFor is how long a builder may be without a connection to log and version
// chain, and be ready.
const awayFor = 10 * time.Second

// ready returns why the builder is not ready.
func ready(r *reportv1.BuilderReport) error {
	if away := r.GetAway(); away != nil {
		since := away.AsTime()
		if took := time.Since(since); took >= awayFor {
			return fmt.Errorf("not connected to log and version chain since %s (%s): %s", since.UTC().Format(time.RFC3339), took.Round(time.Second), r.GetAwayReason())
		}
	}
	switch {
	case r.GetError() != "":
		return errors.New(r.GetError())
	case r.GetPosition().GetSeq() == 0:
		return errors.New("has not read the log yet")
	case r.GetLeader() && len(r.GetWaiting()) > 0:
		return errors.New(strings.Join(r.GetWaiting(), "; "))
	}
	return nil
}

// attention returns the warnings of a report as one error, for /readyz.
func attention(r *reportv1.BuilderReport) error {
	if len(r.GetWarnings()) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.GetWarnings(), "; "))
}
