package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// stretch holds how often a thing was done in a while, how long that took, and the
// processor time of the process that did it.
type stretch struct {
	made      int64
	took, cpu time.Duration
}

func (s stretch) each() time.Duration { return s.cpu / time.Duration(max(s.made, 1)) }

func (s stretch) perSecond() float64 { return float64(s.made) / s.took.Seconds() }

// longestCall is the most that doing a thing once may take.
const longestCall = 10 * time.Second

// stretchOf does a thing again and again, by several clients at once. After a while they
// begin no more, and the stretch ends with the last one that is underway: one that were
// cut off would cost processor time without being counted, and its error could not be
// told from a failure. used returns the processor time of the process that is measured.
func stretchOf(ctx context.Context, length time.Duration, clients int, used func() (time.Duration, error), do func(context.Context) error) (s stretch, err error) {
	before, err := used()
	if err != nil {
		return s, err
	}
	began := time.Now()
	var made atomic.Int64
	var all sync.WaitGroup
	failed := make([]error, clients)
	for i := range clients {
		all.Go(func() {
			for failed[i] == nil && time.Since(began) < length {
				call, cancel := context.WithTimeout(ctx, longestCall)
				if failed[i] = do(call); failed[i] == nil {
					made.Add(1)
				}
				cancel()
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	after, err := used()
	return stretch{made.Load(), took, after - before}, errors.Join(append(failed, err)...)
}

// turnsPlan holds the settings of a comparison of two things, which are done in turns.
type turnsPlan struct {
	rounds  int           // of each of the two
	stretch time.Duration // how long a round lasts
	clients int           // at once; each does one after the other
}

func parseTurns(command string, clients int, args []string) (turnsPlan, error) {
	p := turnsPlan{rounds: 5, stretch: 3 * time.Second, clients: clients}
	fs := flag.NewFlagSet("load "+command, flag.ContinueOnError)
	fs.IntVar(&p.rounds, "rounds", p.rounds, "`stretches` of each of the two; at most 50")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	if p.rounds < 1 || p.rounds > 50 {
		return p, fmt.Errorf("-rounds %d: from 1 to 50", p.rounds)
	}
	return p, nil
}

// rounds are stretches of one thing.
type rounds []stretch

// cpu returns the processor time of doing it once, the median.
func (r rounds) cpu() time.Duration {
	return r.middle(func(a, b stretch) int { return int(a.each() - b.each()) }).each()
}

// perSecond returns how often it was done in a second, the median.
func (r rounds) perSecond() float64 {
	return r.middle(func(a, b stretch) int { return cmp.Compare(a.perSecond(), b.perSecond()) }).perSecond()
}

func (r rounds) middle(compare func(a, b stretch) int) stretch {
	r = slices.Clone(r)
	slices.SortFunc(r, compare)
	return r[len(r)/2]
}
