package registry

import (
	"context"
	"time"
)

// How long changes are gathered into one set (REG-11).
const (
	quiet  = 2 * time.Millisecond
	atMost = 50 * time.Millisecond
)

// Gather returns first and the values that in yields after it. It returns when in has
// yielded nothing for 2 ms, after 50 ms, when in is closed, or when ctx is done.
func Gather[T any](ctx context.Context, in <-chan T, first T) []T {
	all := []T{first}
	end := time.NewTimer(atMost)
	defer end.Stop()
	for {
		still := time.NewTimer(quiet)
		select {
		case one, ok := <-in:
			still.Stop()
			if !ok {
				return all
			}
			all = append(all, one)
		case <-still.C:
			return all
		case <-end.C:
			still.Stop()
			return all
		case <-ctx.Done():
			still.Stop()
			return all
		}
	}
}
