package builder

import (
	"context"
	"log/slog"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/store/natsfeed"
)

// How often the keeper looks for missing streams, and how long it may take.
const (
	ensureEvery  = 5 * time.Second
	ensureWithin = 10 * time.Second
)

// keeper creates the streams, and creates them again if the bus has lost them.
type keeper struct {
	o      *Options
	nc     *bus.Conn
	log    *slog.Logger
	events *natslog.Log
	// epoch returns the epoch of the builder's fold, and lost tells the builder
	// under which epoch the bus has lost its blobs.
	epoch func() uint64
	lost  func(ctx context.Context, epoch uint64) error

	blobsMade time.Time // when the blobs were made that the newest epoch is known to have
}

// open creates missing streams, opens the log as k.events, and returns the chain.
func (k *keeper) open(ctx context.Context) (*natsfeed.Feed, error) {
	one, cancel := context.WithTimeout(ctx, ensureWithin)
	_, _, err := k.ensure(one)
	if cancel(); err != nil {
		return nil, err
	}
	chain, err := natsfeed.Open(ctx, k.nc, natsfeed.Options{Domain: k.o.Domain})
	if err != nil {
		return nil, err
	}
	k.events, err = natslog.Open(ctx, k.nc, natslog.Options{Domain: k.o.Domain})
	return chain, err
}

// ensure creates missing streams, and reports whether it created the log's or the
// chain's, and when the stream of the blobs was made. It does not change existing
// streams.
func (k *keeper) ensure(ctx context.Context) (made bool, blobsMade time.Time, err error) {
	o := k.o
	log, err := natslog.EnsureStream(ctx, k.nc, streams.Log(o.Domain, o.Replicas, o.History, o.logBytes()))
	if err != nil {
		return false, time.Time{}, err
	}
	chain, err := natsfeed.EnsureStreams(ctx, k.nc, natsfeed.StreamOptions{Replicas: o.Replicas, MaxAge: o.History})
	if err != nil {
		return log, time.Time{}, err
	}
	if err := bus.EnsureLeases(ctx, k.nc, o.Replicas); err != nil {
		return log || chain.Created, chain.BlobsMade, err
	}
	if err := cakv.EnsureStream(ctx, k.nc, o.Replicas); err != nil {
		return log || chain.Created, chain.BlobsMade, err
	}
	return log || chain.Created, chain.BlobsMade, audit.EnsureStream(ctx, k.nc, o.sizes(o.Replicas).Audit())
}

// run creates streams again that the bus has lost. An epoch begins then, for which
// all sources list.
func (k *keeper) run(ctx context.Context) error {
	logged := ""
	return every(ctx, ensureEvery, func(ctx context.Context) {
		if !k.nc.IsConnected() {
			return
		}
		one, cancel := context.WithTimeout(ctx, ensureWithin)
		made, blobsMade, err := k.ensure(one)
		if err == nil {
			err = k.saw(one, blobsMade)
		}
		cancel()
		if made {
			k.log.Error("the bus had lost streams; they are created again, empty")
		}
		if err == nil {
			logged = ""
		} else if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			k.log.Warn("cannot look for lost streams", "error", err)
		}
	})
}

// saw compares when the stream of the blobs was made with when the newest epoch
// began: blobs from before the stream are lost. Any builder, or an operator, may
// have created it again.
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
