package builder

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
)

// compareEvery is how often the streams are compared with the settings of this
// builder.
const compareEvery = time.Minute

// streamCheck reports settings of the streams that differ from this builder's. The
// builder works with them; with those that it cannot work with it does not start.
type streamCheck struct {
	o   *Options
	nc  *bus.Conn
	log *slog.Logger

	said atomic.Pointer[string] // the differences that were logged; nil: none yet
}

// run compares until ctx is done.
func (c *streamCheck) run(ctx context.Context) error {
	c.look(ctx)
	return every(ctx, compareEvery, c.look)
}

func (c *streamCheck) look(ctx context.Context) {
	if states, err := c.compare(ctx); err == nil {
		c.tell(states)
	} else if ctx.Err() == nil {
		c.log.Debug("cannot read the settings of the streams", "error", err)
	}
}

func (c *streamCheck) compare(ctx context.Context) ([]bus.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, ensureWithin)
	defer cancel()
	return bus.CompareStreams(ctx, c.nc, streams.All(c.o.Domain, c.o.sizes(c.o.Replicas))...)
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
		c.log.Warn("settings of streams differ from this builder's; `meshlog streams` shows and changes them", "settings", all)
	}
}

// warning returns the warning on /readyz.
func (c *streamCheck) warning() error {
	if said := c.said.Load(); said != nil && *said != "" {
		return fmt.Errorf("%s; `meshlog streams` changes it", *said)
	}
	return nil
}

// page serves a debug page.
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
