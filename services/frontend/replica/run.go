package replica

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"meshlog.dev/store"
)

const (
	// persistEvery is how far the store may lag behind the served version,
	// apart from the time of one commit.
	persistEvery = 250 * time.Millisecond
	// retryFirst to retryMost is the pause after the chain or the disk has
	// failed.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Run follows the chain (nil: none) and persists the served versions until ctx
// is done. Call Load first. Failures of the chain or the store do not end it.
func (r *Replica) Run(ctx context.Context, chain store.Chain) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.persistLoop(ctx) })
	if chain != nil {
		g.Go(func() error { return r.followChain(ctx, chain) })
	}
	return g.Wait()
}

// followChain follows the chain and retries after every failure.
func (r *Replica) followChain(ctx context.Context, chain store.Chain) error {
	pause := retryFirst
	for ctx.Err() == nil {
		before := r.state.Load()
		err := r.followOnce(ctx, chain)
		if ctx.Err() != nil {
			break
		}
		if r.state.Load() != before {
			pause = retryFirst
		}
		r.failed.Store(&failure{err, time.Now()})
		r.cfg.Logger.Warn("cannot follow the version chain; serving the local replica", "error", err, "retry", pause)
		wait(ctx, pause)
		pause = min(2*pause, retryMost)
	}
	return nil
}

// failure is why the chain could not be followed, and when.
type failure struct {
	err error
	at  time.Time
}

// failsFor is how long a failure counts unless another one follows: longer than
// the pause and the requests of one attempt. An attempt that succeeds just waits
// for the next version.
const failsFor = 20 * time.Second

// Following returns why the chain cannot be followed, nil if it can. Safe for
// concurrent use.
func (r *Replica) Following() error {
	if f := r.failed.Load(); f != nil && time.Since(f.at) < failsFor {
		return f.err
	}
	return nil
}

func (r *Replica) followOnce(ctx context.Context, chain store.Chain) error {
	follower, err := chain.Follow(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := follower.Close(); err != nil {
			r.cfg.Logger.Debug("cannot close the follower of the version chain", "error", err)
		}
	}()
	for {
		have := r.state.Load()
		links, err := follower.Next(ctx, have.Version(), have.Root())
		if rewound := (*store.MismatchError)(nil); errors.As(err, &rewound) {
			r.cfg.Logger.Error("the version chain was rewound", "error", err)
			r.cfg.OnMismatch(rewound)
			continue
		}
		if err != nil {
			return err
		}
		if err := r.Step(ctx, links, chain.Fetch); err != nil {
			return err
		}
	}
}

// persistLoop writes served versions beside serving.
func (r *Replica) persistLoop(ctx context.Context) error {
	pause, failing := retryFirst, false
	for {
		select {
		case <-ctx.Done():
			// Write the last version too, if the disk allows.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if err := r.Persist(last); err != nil {
				r.cfg.Logger.Warn("the served version is not persisted", "error", err)
			}
			return nil
		case <-r.newer:
		}
		err := r.Persist(ctx)
		switch {
		case err == nil:
			if failing {
				r.cfg.Logger.Info("the served version is persisted again")
			}
			failing, pause = false, retryFirst
			wait(ctx, persistEvery)
			continue
		case !failing && ctx.Err() == nil:
			failing = true
			r.cfg.Logger.Error("the served version is not persisted yet; serving on", "error", err)
		}
		wait(ctx, pause)
		pause = min(2*pause, retryMost)
		select {
		case r.newer <- struct{}{}: // try again
		default:
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
