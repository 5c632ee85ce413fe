package builder

import (
	"context"
	"log/slog"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder/ledger"
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
	o      *Options
	nc     *bus.Conn
	log    *slog.Logger
	events *natslog.Log
	// epoch returns the epoch of the builder's fold, and lost tells the builder
	// under which epoch the bus has lost its blobs.
	epoch func() uint64
	lost  func(ctx context.Context, epoch uint64) error

	blobsMade time.Time // those of which it is known that the newest epoch has them
}

// open makes the streams where they are missing, and opens log and chain.
func (k *keeper) open(ctx context.Context) (*natslog.Log, *natsfeed.Feed, error) {
	if _, _, err := k.ensure(ctx); err != nil {
		return nil, nil, err
	}
	chain, err := natsfeed.Open(ctx, k.nc, natsfeed.Options{Domain: k.o.Domain})
	if err != nil {
		return nil, nil, err
	}
	k.events, err = natslog.Open(ctx, k.nc, natslog.Options{Domain: k.o.Domain})
	return k.events, chain, err
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
		if err == nil {
			err = k.saw(one, blobsMade)
		}
		cancel()
		if made {
			k.log.Error("the bus had lost streams; they are made anew, without what was in them")
		}
		if err == nil {
			said = ""
		} else if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			k.log.Warn("the streams cannot be looked after", "error", err)
		}
	}
}

// saw compares when the blobs were made with when the newest epoch began: what an
// older one had in the blobs before them is lost. Any builder, or an operator,
// may have made them anew.
func (k *keeper) saw(ctx context.Context, blobsMade time.Time) error {
	if blobsMade.Equal(k.blobsMade) {
		return nil
	}
	epoch, began, err := k.newestEpoch(ctx)
	switch {
	case err != nil:
		return err
	case epoch == 0:
	case began.Before(blobsMade):
		return k.lost(ctx, epoch) // again and again, until another epoch begins
	default:
		k.blobsMade = blobsMade
	}
	return nil
}

// newestEpoch returns the newest epoch of the log, and when it began by the clock
// of the bus; approximately, if the record that began it has expired. The epoch
// is 0 if there is none.
func (k *keeper) newestEpoch(ctx context.Context) (epoch uint64, began time.Time, err error) {
	seg, rec, err := ledger.NewestEpoch(ctx, k.events)
	switch {
	case err != nil:
		return 0, began, err
	case seg == nil:
		epoch = k.epoch()
	case rec.Seq == 0:
		epoch = seg.Epoch
	default:
		return seg.Epoch, rec.Time, nil
	}
	return epoch, time.Unix(int64(epoch)+1, 0), nil // an epoch's number is the second in which it began
}
