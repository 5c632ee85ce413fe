package process

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Stage is a group of functions that are stopped together. Each runs until its
// context is done or its work is finished.
type Stage []func(context.Context) error

// RunStages runs the functions of all stages concurrently and stops them stage by
// stage: the first stage when ctx is done or a function fails, each later stage
// when all functions of the previous one have returned. RunStages returns when
// all functions have returned, with the first failure. A function that returns
// its context's error has not failed.
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
