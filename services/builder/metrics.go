package builder

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what a builder counts. Main registers them.
type Metrics struct {
	Leader      prometheus.Gauge     // meshlog_builder_leader: 1 or 0
	Behind      prometheus.Gauge     // meshlog_builder_unfolded_records
	Waiting     prometheus.Gauge     // meshlog_builder_waiting_sources
	Failing     prometheus.Gauge     // meshlog_builder_failing: 1 or 0
	Records     prometheus.Counter   // meshlog_builder_records_total
	Versions    prometheus.Counter   // meshlog_builder_versions_total
	Compared    prometheus.Counter   // meshlog_builder_compared_roots_total
	Segments    prometheus.Counter   // meshlog_builder_segments_total
	Holds       prometheus.Counter   // meshlog_builder_holds_total
	Conflicts   prometheus.Counter   // meshlog_builder_conflicts_total
	Recovered   prometheus.Counter   // meshlog_builder_rewinds_total
	BuildErrors prometheus.Counter   // meshlog_builder_build_errors_total
	Build       prometheus.Histogram // meshlog_builder_publish_seconds
	collectors  []prometheus.Collector
	seen        Stats // counted so far
}

// NewMetrics makes the metrics of one builder.
func NewMetrics() *Metrics {
	m := &Metrics{}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshlog_builder_" + name, Help: help})
		m.collectors = append(m.collectors, g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "meshlog_builder_" + name + "_total", Help: help})
		m.collectors = append(m.collectors, c)
		return c
	}
	m.Leader = gauge("leader", "1 while this builder holds the lease.")
	m.Behind = gauge("unfolded_records", "Records that were read and not folded; a standby keeps behind the head.")
	m.Waiting = gauge("waiting_sources", "Reasons why nothing is published yet.")
	m.Failing = gauge("failing", "1 while something is wrong that the builder's report tells.")
	m.Records = counter("records", "Records folded.")
	m.Versions = counter("versions", "Versions published.")
	m.Compared = counter("compared_roots", "Versions of other builders whose root was found equal.")
	m.Segments = counter("segments", "Segments and epochs begun.")
	m.Holds = counter("holds", "Mass losses held.")
	m.Conflicts = counter("conflicts", "Fences lost to another builder.")
	m.Recovered = counter("rewinds", "Times that the log was not the one that was read.")
	m.BuildErrors = counter("build_errors", "Builds that failed; the version before served on.")
	m.Build = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "meshlog_builder_publish_seconds", Help: "Seconds from the end of the holdoff until a version was published and filed.",
		Buckets: prometheus.ExponentialBuckets(.0005, 2, 14),
	})
	m.collectors = append(m.collectors, m.Build)
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
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}

// observe counts what happened since the last call. The builder's goroutine
// calls it.
func (m *Metrics) observe(b *Machine) {
	was, now := m.seen, b.stats
	m.seen = now
	m.Records.Add(float64(now.Records - was.Records))
	m.Versions.Add(float64(now.Versions - was.Versions))
	m.Compared.Add(float64(now.Compared - was.Compared))
	m.Segments.Add(float64(now.Segments - was.Segments))
	m.Holds.Add(float64(now.Holds - was.Holds))
	m.Conflicts.Add(float64(now.Conflicts - was.Conflicts))
	m.Recovered.Add(float64(now.Recovered - was.Recovered))
	m.BuildErrors.Add(float64(now.BuildErrors - was.BuildErrors))
	m.Leader.Set(one(b.leader))
	m.Failing.Set(one(b.failure() != nil))
	m.Behind.Set(float64(len(b.ahead)))
	m.Waiting.Set(float64(len(b.waiting)))
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
