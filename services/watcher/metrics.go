package watcher

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Metrics are the metrics of a publisher, labelled with its shard. The program
// registers them.
type Metrics struct {
	prometheus.Collector

	speaks, partial, objects, unacknowledged prometheus.Gauge
	listing, publish                         prometheus.Histogram
	events, unsent, retries, sessions        prometheus.Counter
	problems                                 *prometheus.GaugeVec // by severity

	down atomic.Pointer[time.Time] // since when; zero: the source can be read
}

// NewMetrics makes the metrics of the publisher of a shard.
func NewMetrics(shard ident.Shard) *Metrics {
	all := prometheus.NewRegistry()
	m := &Metrics{Collector: all}
	labels := prometheus.Labels{"source": shard.String()} // "instance" is what Prometheus calls the process
	prefixed := prometheus.WrapRegistererWithPrefix("meshlog_watcher_", all)
	add := promauto.With(prometheus.WrapRegistererWith(labels, prefixed))
	m.speaks = add.NewGauge(prometheus.GaugeOpts{Name: "speaks", Help: "1 while this watcher publishes for its source, 0 while it stands by. If it is 0 for long in all watchers of a source, none watches it."})
	add.NewGaugeFunc(prometheus.GaugeOpts{Name: "source_down_seconds", Help: "Seconds since which the source cannot be read; 0: it can be read. Its objects do not change meanwhile; the watcher's log has the reason."}, m.downSeconds)
	m.partial = add.NewGauge(prometheus.GaugeOpts{Name: "partial", Help: "1 while a part of the source cannot be read: no object is removed meanwhile. See `meshlog sources`."})
	m.problems = add.NewGaugeVec(prometheus.GaugeOpts{Name: "problems", Help: "Problems of the source that are not on the log: unreadable objects and objects left out. See `meshlog sources` for each and what to do."}, []string{"severity"})
	m.objects = add.NewGauge(prometheus.GaugeOpts{Name: "objects", Help: "Objects of the source."})
	m.unacknowledged = add.NewGauge(prometheus.GaugeOpts{Name: "unacknowledged_changes", Help: "Changes that are not on the log yet. If it stays above 0, the bus is away or the log is full."})
	m.listing = add.NewHistogram(prometheus.HistogramOpts{Name: "listing_seconds", Help: "Seconds from the start of reading the whole source until the log had all of it. Long: the source is slow, or the leader lacked much of it.", Buckets: prometheus.ExponentialBuckets(.004, 2, 16)})
	m.publish = add.NewHistogram(prometheus.HistogramOpts{Name: "publish_seconds", Help: "Seconds from seeing a change until it was on the log; of changes sent together, for the oldest. Long: the disks of the bus or the network to it are slow.", Buckets: prometheus.ExponentialBuckets(.0005, 2, 16)})
	m.events = add.NewCounter(prometheus.CounterOpts{Name: "events_total", Help: "Objects and deletions put on the log."})
	m.unsent = add.NewCounter(prometheus.CounterOpts{Name: "unsent_objects_total", Help: "Objects of listings that were not sent because the leader already had them, by its digests."})
	m.retries = add.NewCounter(prometheus.CounterOpts{Name: "retries_total", Help: "Appends that were retried because the log did not accept them. See the watcher's log for the reason."})
	m.sessions = add.NewCounter(prometheus.CounterOpts{Name: "sessions_total", Help: "Sessions begun; each lists the whole source. Many: the log was rewound, watchers take turns, or the leader keeps asking. See the watcher's log for the reason."})
	m.set(State{})
	return m
}

func (m *Metrics) downSeconds() float64 {
	since := *m.down.Load()
	if since.IsZero() {
		return 0
	}
	return time.Since(since).Seconds()
}

// set updates the metrics to a new state.
func (m *Metrics) set(s State) {
	m.speaks.Set(one(s.Phase != PhaseStandby && s.Phase != ""))
	m.partial.Set(one(s.Partial))
	m.objects.Set(float64(s.Keys))
	m.unacknowledged.Set(float64(s.Pending))
	count := map[problem.Severity]int{}
	for _, d := range s.Diagnostics {
		count[d.Severity]++
	}
	for _, severity := range []problem.Severity{problem.Info, problem.Warning, problem.Error} {
		m.problems.WithLabelValues(severity.String()).Set(float64(count[severity]))
	}
	down := s.Down
	m.down.Store(&down)
}

// published counts changes that were sent together and are on the log.
func (m *Metrics) published(now time.Time, changes []change) {
	oldest := now
	for _, c := range changes {
		if o := c.object.Observed; !o.IsZero() && o.Before(oldest) {
			oldest = o
		}
	}
	m.publish.Observe(now.Sub(oldest).Seconds())
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
