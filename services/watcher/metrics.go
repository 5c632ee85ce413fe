package watcher

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Metrics are the metrics of a publisher, labelled with its shard. The program
// registers them.
type Metrics struct {
	collectors []prometheus.Collector

	speaks, downSeconds, partial, objects, unacknowledged prometheus.Gauge
	listing, publish                                      prometheus.Histogram
	events, unsent, retries, sessions                     prometheus.Counter
	problems                                              map[problem.Severity]prometheus.Gauge

	mu        sync.Mutex // protects what follows
	downSince time.Time  // zero: the source can be read
}

// NewMetrics makes the metrics of the publisher of a shard.
func NewMetrics(shard ident.Shard) *Metrics {
	m := &Metrics{}
	labels := prometheus.Labels{"source": shard.String()} // "instance" is what Prometheus calls the process
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshlog_watcher_" + name, Help: help, ConstLabels: labels})
		m.collectors = append(m.collectors, g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "meshlog_watcher_" + name, Help: help, ConstLabels: labels})
		m.collectors = append(m.collectors, c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "meshlog_watcher_" + name, Help: help, ConstLabels: labels, Buckets: buckets})
		m.collectors = append(m.collectors, h)
		return h
	}
	m.speaks = gauge("speaks", "1 while this watcher publishes for its source, 0 while it stands by. If it is 0 for long in all watchers of a source, none watches it.")
	m.downSeconds = gauge("source_down_seconds", "Seconds since which the source cannot be read; 0: it can be read. Its objects do not change meanwhile; the watcher's log has the reason.")
	m.partial = gauge("partial", "1 while a part of the source cannot be read: no object is removed meanwhile. See `meshlog sources`.")
	problems := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_watcher_problems", Help: "Problems of the source that are not on the log: unreadable objects and objects left out. See `meshlog sources` for each and what to do.", ConstLabels: labels,
	}, []string{"severity"})
	m.collectors = append(m.collectors, problems)
	m.problems = map[problem.Severity]prometheus.Gauge{}
	for _, s := range []problem.Severity{problem.Info, problem.Warning, problem.Error} {
		m.problems[s] = problems.WithLabelValues(s.String())
	}
	m.objects = gauge("objects", "Objects of the source.")
	m.unacknowledged = gauge("unacknowledged_changes", "Changes that are not on the log yet. If it stays above 0, the bus is away or the log is full.")
	m.listing = histogram("listing_seconds", "Seconds from the start of reading the whole source until the log had all of it. Long: the source is slow, or the leader lacked much of it.", prometheus.ExponentialBuckets(.004, 2, 16))
	m.publish = histogram("publish_seconds", "Seconds from seeing a change until it was on the log; of changes sent together, for the oldest. Long: the disks of the bus or the network to it are slow.", prometheus.ExponentialBuckets(.0005, 2, 16))
	m.events = counter("events_total", "Objects and deletions put on the log.")
	m.unsent = counter("unsent_objects_total", "Objects of listings that were not sent because the leader already had them, by its digests.")
	m.retries = counter("retries_total", "Appends that were retried because the log did not accept them. See the watcher's log for the reason.")
	m.sessions = counter("sessions_total", "Sessions begun; each lists the whole source. Many: the log was rewound, watchers take turns, or the leader keeps asking. See the watcher's log for the reason.")
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	down := time.Duration(0)
	if !m.downSince.IsZero() {
		down = time.Since(m.downSince)
	}
	m.mu.Unlock()
	m.downSeconds.Set(down.Seconds())
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}

// tell takes in a new state.
func (m *Metrics) tell(s State) {
	m.speaks.Set(one(s.Phase != PhaseStandby && s.Phase != ""))
	m.partial.Set(one(s.Partial))
	m.objects.Set(float64(s.Keys))
	m.unacknowledged.Set(float64(s.Pending))
	count := map[problem.Severity]int{}
	for _, d := range s.Diagnostics {
		count[d.Severity]++
	}
	for severity, g := range m.problems {
		g.Set(float64(count[severity]))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.downSince = s.Down
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
