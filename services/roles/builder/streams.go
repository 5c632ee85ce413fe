package builder

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/store/natsfeed"
)

// LogOptions are those of the log's stream. Records stay for longer than the
// history that is promised, by two of the intervals in which a checkpoint of the
// fold is due: the oldest version of that history can be folded from one.
func LogOptions(domain string, replicas int, history time.Duration, logBytes int64) natslog.StreamOptions {
	return natslog.StreamOptions{
		Options: natslog.Options{Domain: domain}, Replicas: replicas,
		MaxAge: history + 2*builder.CheckpointEvery(history), MaxBytes: logBytes,
	}
}

// Streams are the streams of a mesh as a builder makes them.
func Streams(domain string, replicas int, history time.Duration, logBytes int64) []bus.StreamConfig {
	log := LogOptions(domain, replicas, history, logBytes)
	chain := natsfeed.StreamOptions{Replicas: replicas, MaxAge: history}
	return []bus.StreamConfig{log.Config(), chain.Config(), chain.BlobConfig(), bus.LeaseConfig(replicas)}
}

// compareEvery is how often the streams are compared with what this builder
// would make.
const compareEvery = time.Minute

// streamCheck says which settings of the streams are others than a builder would
// give them. With what it cannot work, it does not start; the rest is its
// operator's to know.
type streamCheck struct {
	o   *Options
	nc  *bus.Conn
	log *slog.Logger

	said atomic.Pointer[string] // the differences that were logged; nil: none yet
}

// run compares until ctx is done.
func (c *streamCheck) run(ctx context.Context) error {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for {
		if states, err := c.compare(ctx); err == nil {
			c.tell(states)
		} else if ctx.Err() == nil {
			c.log.Debug("the settings of the streams are not known", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (c *streamCheck) compare(ctx context.Context) ([]bus.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureWithin)
	defer cancel()
	o := c.o
	return bus.CompareStreams(ctx, c.nc, Streams(o.Domain, o.Replicas, o.History, o.LogBytes)...)
}

func (c *streamCheck) tell(states []bus.StreamState) {
	var all []string
	for _, s := range states {
		for _, d := range s.Differences {
			all = append(all, fmt.Sprintf("%s: %s is %s, this builder wants %s", s.Name, d.Setting, d.Is, d.Wants))
		}
	}
	text := strings.Join(all, "; ")
	if before := c.said.Swap(&text); text != "" && (before == nil || *before != text) {
		c.log.Warn("streams have other settings than this builder's; `meshlog streams` shows and changes them", "settings", all)
	}
}

// warning is what /readyz says besides.
func (c *streamCheck) warning() error {
	if said := c.said.Load(); said != nil && *said != "" {
		return fmt.Errorf("%s; `meshlog streams` changes it", *said)
	}
	return nil
}

// page is a debug page.
func (c *streamCheck) page(w http.ResponseWriter, r *http.Request) {
	if process.Params(w, r) == nil {
		return
	}
	states, err := c.compare(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	process.WriteJSON(w, states)
}
