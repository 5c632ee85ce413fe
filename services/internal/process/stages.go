package process

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Stage is what ends at once. Each function runs until its context is done, or
// until it has nothing more to do.
type Stage []func(context.Context) error

// RunStages runs all functions of all stages at once, and ends them stage by
// stage: the first one when ctx is done or when a function failed, each other
// one when all of the stage before it have returned. It returns when all have,
// with the first failure; that a function was told to end is none.
func RunStages(ctx context.Context, stages ...Stage) error {
	now, end := context.WithCancel(ctx)
	defer end()
	var g errgroup.Group
	for _, stage := range stages {
		mine := now
		next, endNext := context.WithCancel(context.WithoutCancel(ctx))
		defer endNext()
		var running sync.WaitGroup
		for _, f := range stage {
			running.Add(1)
			g.Go(func() error {
				defer running.Done()
				err := f(mine)
				if err == nil || mine.Err() != nil && errors.Is(err, mine.Err()) {
					return nil
				}
				end()
				return err
			})
		}
		g.Go(func() error {
			running.Wait()
			endNext()
			return nil
		})
		now = next
	}
	return g.Wait()
}
