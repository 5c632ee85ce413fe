package keys

import (
	"context"
	"sync"
	"time"
)

// tendEvery is how often Run removes files, and seals again what it could not.
const tendEvery = time.Minute

// Run asks for keys and looks after the sealed files until ctx is done. The keys stay in
// memory when it returns: streams of proxies may still end.
func (s *Store) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.tend(ctx) })
	overdue := time.NewTimer(0)
	defer overdue.Stop()
	for {
		starts, gone, next := s.work(time.Now())
		for _, f := range starts {
			running.Go(func() { s.fetch(ctx, f) })
		}
		for _, k := range gone {
			s.log.Warn("a private key has not come; proxies are told that the secret is unknown until it comes", "object", k.object(), "field", k.Field, "hmac", hexSum(k))
			s.changed(k)
		}
		overdue.Reset(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.poke:
		case <-overdue.C:
		}
	}
}

// work returns the fetches to start, the keys that are known to be gone now, and after
// which time the next key may be.
func (s *Store) work(now time.Time) (starts []*fetch, gone []Key, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	starts, s.starts = s.starts, nil
	n := 0
	for ; n < len(s.waits) && now.Sub(s.waits[n].entry.since) >= comingFor; n++ {
		w := s.waits[n]
		if s.entries[w.key] == w.entry && w.entry.content == nil && !w.entry.gone {
			w.entry.gone = true
			gone = append(gone, w.key)
		}
	}
	s.waits = append([]wait(nil), s.waits[n:]...)
	next = tendEvery
	if len(s.waits) > 0 {
		next = s.waits[0].entry.since.Add(comingFor).Sub(now)
	}
	return starts, gone, next
}

func (s *Store) tend(ctx context.Context) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.sweep()
			s.sealAgain()
		}
	}
}
