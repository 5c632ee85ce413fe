package frontend

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/store"
)

// lookEvery is how often the bus is looked at: how exact the time is since when it
// is away.
const lookEvery = time.Second

// outage is since when the frontend cannot follow the version chain, and why.
type outage struct {
	// look returns why it cannot; nil: it can.
	look func() error

	mu    sync.Mutex
	since time.Time
	err   error
}

func (o *outage) note(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.err == nil {
		o.since = now
	}
	o.err = err
}

// get looks at the bus, and returns since when it is away, and why.
func (o *outage) get() (time.Time, error) {
	o.note(time.Now(), o.look())
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, o.err
}

// seconds returns how long the outage has lasted, 0 without one.
func (o *outage) seconds() float64 {
	if since, err := o.get(); err != nil {
		return time.Since(since).Seconds()
	}
	return 0
}

// warning returns the warning on /readyz: the frontend serves without the bus, so
// it stays ready.
func (o *outage) warning() error {
	since, err := o.get()
	if err == nil {
		return nil
	}
	return fmt.Errorf("the bus is away since %s (%s), and what was received before is served: %w",
		since.UTC().Format(time.RFC3339), time.Since(since).Round(time.Second), err)
}

// watch looks at the bus once a second, until ctx is done.
func (o *outage) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		_, _ = o.get()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// state returns why the bus is not connected.
func (l *busLink) state() error {
	select {
	case <-l.ready:
		return bus.Ready(l.nc)
	default:
		return bus.ErrNotConnected
	}
}

// foreignFor is how long /readyz mentions messages that are no versions.
const foreignFor = time.Hour

// foreign counts messages on the version chain that are no versions (BUS-4).
type foreign struct {
	log   *slog.Logger
	count prometheus.Counter

	mu   sync.Mutex
	last *store.ForeignError
	at   time.Time
}

func newForeign(log *slog.Logger) *foreign {
	return &foreign{log: log, count: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "meshlog_frontend_foreign_messages_total",
		Help: "Times that the newest messages of the version chain were no versions. The frontend passes them over. Above 0: a client that is no builder can write there; correct the permissions of the bus.",
	})}
}

func (f *foreign) add(e *store.ForeignError) {
	f.count.Inc()
	f.log.Error("the newest messages of the version chain are no versions; they are passed over", "newest", e.Seq, "messages", e.Messages, "reason", e.Reason)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.at = e, time.Now()
}

func (f *foreign) warning() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil || time.Since(f.at) > foreignFor {
		return nil
	}
	return fmt.Errorf("%w (%s ago); it was passed over: a client that is no builder can write to the version chain", f.last, time.Since(f.at).Round(time.Second))
}

// report makes /readyz and the metrics show outage and foreign messages.
func report(admin *process.Admin, away *outage, foreign *foreign) {
	admin.Warn("bus", away.warning)
	admin.Warn("version chain", foreign.warning)
	admin.Register(foreign.count, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshlog_frontend_away_seconds",
		Help: "Seconds since which this frontend cannot follow the version chain, because the bus is away for example; 0: it can. It serves what it has; changes do not reach its proxies. /readyz says why.",
	}, away.seconds))
}
