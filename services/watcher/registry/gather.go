package registry

import (
	"context"
	"time"
)

// How long changes are gathered into one set (REG-11).
const (
	quiet   = 2 * time.Millisecond
	atMost  = 50 * time.Millisecond
	atMostN = 4096
)

// Gather returns first and what follows it in in, until nothing came for 2 ms, 50 ms have
// passed, in is closed or ctx is done.
func Gather[T any](ctx context.Context, in <-chan T, first T) []T {
	all := []T{first}
	end := time.NewTimer(atMost)
	defer end.Stop()
	for len(all) < atMostN {
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
	return all
}
