package builderup

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

// How often is looked whether the streams are there, and how long that takes at
// most.
const (
	ensureEvery  = 5 * time.Second
	ensureWithin = 10 * time.Second
)

// keeper makes the streams, and makes them anew where the bus has lost them.
type keeper struct {
	o   *Options
	nc  *bus.Conn
	log *slog.Logger
	// epoch is that of the builder's fold, 0 while it has none.
	epoch func() uint64
	// lost takes epochs under which the bus has lost its blobs.
	lost chan uint64

	blobsMade time.Time // when they were seen last
	under     uint64    // the epoch then
}

// open makes the streams where they are missing, and opens log and chain.
func (k *keeper) open(ctx context.Context) (*natslog.Log, *natsfeed.Feed, error) {
	_, blobsMade, err := k.ensure(ctx)
	if err != nil {
		return nil, nil, err
	}
	k.blobsMade = blobsMade
	chain, err := natsfeed.Open(ctx, k.nc, natsfeed.Options{Domain: k.o.Domain})
	if err != nil {
		return nil, nil, err
	}
	log, err := natslog.Open(ctx, k.nc, natslog.Options{Domain: k.o.Domain})
	return log, chain, err
}

// ensure makes the streams where they are missing, and says whether the log's or
// the chain's was, and when that of the blobs was made. What is there is not
// changed.
func (k *keeper) ensure(ctx context.Context) (made bool, blobsMade time.Time, err error) {
	o := k.o
	log, err := natslog.EnsureStream(ctx, k.nc, LogOptions(o.Domain, o.Replicas, o.History, o.LogBytes))
	if err != nil {
		return false, time.Time{}, err
	}
	chain, err := natsfeed.EnsureStreams(ctx, k.nc, natsfeed.StreamOptions{Replicas: o.Replicas, MaxAge: o.History})
	if err != nil {
		return log, time.Time{}, err
	}
	return log || chain.Created, chain.BlobsMade, bus.EnsureLeases(ctx, k.nc, o.Replicas)
}

// run makes streams anew that the bus has lost: an epoch begins then, for which
// all sources list.
func (k *keeper) run(ctx context.Context) error {
	tick := time.NewTicker(ensureEvery)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !k.nc.IsConnected() {
			continue
		}
		one, cancel := context.WithTimeout(ctx, ensureWithin)
		made, blobsMade, err := k.ensure(one)
		cancel()
		if made {
			k.log.Error("the bus had lost streams; they are made anew, without what was in them")
		}
		if err == nil {
			said = ""
			k.saw(blobsMade)
		} else if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			k.log.Warn("the streams cannot be looked after", "error", err)
		}
	}
}

// saw compares when the blobs were made with when they had been. Any builder, or
// an operator, may have made them anew. What was lost was lost under the epoch in
// which they were seen before: one that began since has its own.
func (k *keeper) saw(blobsMade time.Time) {
	now := k.epoch()
	if !blobsMade.Equal(k.blobsMade) {
		lost := cmp.Or(k.under, now)
		if lost == 0 {
			return // look again once the log was read
		}
		latest(k.lost, lost)
	}
	k.blobsMade, k.under = blobsMade, now
}
