package builder

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// Metrics are what a builder counts, in the order in which a change passes its
// stages: log, holdoff, build, publish. Main registers them. Where istiod has
// the same thing the name is istiod's.
type Metrics struct {
	collectors []prometheus.Collector

	// The log.
	records, segments, rewinds prometheus.Counter
	unfolded, waiting          prometheus.Gauge
	frozen                     *prometheus.GaugeVec // by source
	position                   place
	logLag                     prometheus.Histogram
	// What becomes of it.
	holdoff, build, publish, commit   prometheus.Histogram
	versions, keys, errors, conflicts prometheus.Counter
	head                              place
	diagnostics                       map[problem.Severity]prometheus.Gauge
	// Overlays that are not an operator's.
	held, quarantined          prometheus.Counter
	openHolds, openQuarantines prometheus.Gauge
	// Who leads.
	leader, failing, refused prometheus.Gauge
	compared                 prometheus.Counter

	seen     stats           // counted so far
	sources  map[string]bool // that frozen has
	seenAt   ident.Position  // of the log, at which sources were counted
	seenHead *store.Manifest // whose Diagnostics and holds were counted
}

// place is a position, in two gauges.
type place struct{ epoch, seq prometheus.Gauge }

func (p place) set(at ident.Position) {
	p.epoch.Set(float64(at.Epoch))
	p.seq.Set(float64(at.Seq))
}

// NewMetrics makes the metrics of one builder.
func NewMetrics() *Metrics {
	m := &Metrics{sources: map[string]bool{}}
	m.records = m.counter("meshlog_builder_records_total", "Records of the log that were folded.")
	m.unfolded = m.gauge("meshlog_builder_unfolded_records", "Records that were read and not folded. A standby keeps those behind the head; where a leader does, it cannot keep up: give it more CPU.")
	m.position = m.place("meshlog_builder_position", "Position of the log up to which this builder has folded, in two parts.")
	m.logLag = m.histogram("meshlog_builder_log_lag_seconds", "Seconds from the first change of a version being on the log (the bus's clock) until it was read here. If it is long: the bus, or the network to it, is slow, or the clocks differ.")
	m.waiting = m.gauge("meshlog_builder_waiting_sources", "Reasons why nothing is published: required sources that have not listed. Above 0 for long: start their watchers, or see `meshlog sources`.")
	m.frozen = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_builder_frozen_kinds",
		Help: "Kinds that a source cannot be read for (a definition or a permission is gone): their objects stay as they are. Above 0: `meshlog sources` says which, and what to do.",
	}, []string{"source"})
	m.collectors = append(m.collectors, m.frozen)
	m.segments = m.counter("meshlog_builder_segments_total", "Segments and epochs begun: one for each new build, and for each rewind of the log.")
	m.rewinds = m.counter("meshlog_builder_rewinds_total", "Times that the log was not the one that was read. Each is a loss on the bus: find out who restored or deleted its data.")

	m.holdoff = m.histogram("pilot_debounce_time", "Seconds that the first change of a version waited for others to come with it: the holdoff, 500 ms at most, 50 ms with an endpoint among them. Longer: the builder was busy, or waited for a source.")
	m.build = m.histogram("meshlog_builder_build_seconds", "Seconds that it took to build and check a version. If it is long, changes come late: give the builder more CPU.")
	m.publish = m.histogram("meshlog_builder_publish_seconds", "Seconds until the bus had a version. If it is long: the disks of the bus are slow, or the network to it.")
	m.commit = m.histogram("meshlog_builder_commit_seconds", "Seconds from the end of the holdoff until a version was published and in the builder's own file. Much more than build and publish: the builder's disk is slow.")
	m.versions = m.counter("meshlog_builder_versions_total", "Versions published by this builder.")
	m.keys = m.counter("meshlog_builder_changed_keys_total", "Rows of the world that differ from the version before, summed over the versions published.")
	m.errors = m.counter("meshlog_builder_build_errors_total", "Builds that failed; the version before is served on. The builder's log names the error, `meshlog log` the record.")
	m.conflicts = m.counter("meshlog_builder_conflicts_total", "Fences lost to another builder. Many: two builders lead in turns; see whether the network between them and the bus is cut.")
	m.head = m.place("meshlog_builder_head", "The published version that is the newest for this builder, in two parts. A frontend's meshlog_frontend_version that stays below it lags.")
	diagnostics := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_builder_diagnostics", Help: "Problems in user data in the newest version, 1000 at most. `meshlog diagnostics` says which, and what to do.",
	}, []string{"severity"})
	m.collectors = append(m.collectors, diagnostics)
	m.diagnostics = map[problem.Severity]prometheus.Gauge{}
	for _, s := range []problem.Severity{problem.Info, problem.Warning, problem.Error} {
		m.diagnostics[s] = diagnostics.WithLabelValues(s.String())
	}

	m.held = m.counter("meshlog_builder_holds_total", "Mass losses of a source that were held back.")
	m.quarantined = m.counter("meshlog_builder_quarantines_total", "Resources that were put into quarantine because proxies rejected them.")
	m.openQuarantines = m.gauge("meshlog_builder_open_quarantines", "Resources that are in quarantine, 100 at most: every frontend serves their last good content. Above 0: `meshlog diagnostics` says what to correct; correcting it lifts them.")
	m.openHolds = m.gauge("meshlog_builder_open_holds", "Mass losses that wait for a word. Above 0: `meshlog approve` lists them; approve what was meant, restore what was not.")

	m.leader = m.gauge("meshlog_builder_leader", "1 while this builder holds the lease. Over all builders: 0 for long, nobody publishes; above 1 for long, the network is cut.")
	m.failing = m.gauge("meshlog_builder_failing", "1 while something is wrong that /debug/builder tells.")
	m.compared = m.counter("meshlog_builder_compared_roots_total", "Versions of other builders whose root was found equal here.")
	m.refused = m.gauge("meshlog_builder_refused", "1 after the same log came to another content here than at the leader; this builder leads no more. One of the two machines is not to be trusted: compare with `meshlog verify`.")
	return m
}

// stages are the buckets of what a stage takes, in seconds: 0.5 ms to 16 s.
func stages() []float64 { return prometheus.ExponentialBuckets(.0005, 2, 16) }

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.collectors = append(m.collectors, g)
	return g
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.collectors = append(m.collectors, c)
	return c
}

func (m *Metrics) histogram(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: stages()})
	m.collectors = append(m.collectors, h)
	return h
}

func (m *Metrics) place(name, help string) place {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"part"})
	m.collectors = append(m.collectors, v)
	return place{epoch: v.WithLabelValues("epoch"), seq: v.WithLabelValues("seq")}
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
	m.records.Add(float64(now.Records - was.Records))
	m.compared.Add(float64(now.Compared - was.Compared))
	m.segments.Add(float64(now.Segments - was.Segments))
	m.held.Add(float64(now.Holds - was.Holds))
	m.quarantined.Add(float64(now.Quarantines - was.Quarantines))
	m.conflicts.Add(float64(now.Conflicts - was.Conflicts))
	m.rewinds.Add(float64(now.Recovered - was.Recovered))
	m.errors.Add(float64(now.BuildErrors - was.BuildErrors))
	m.leader.Set(one(b.leader))
	m.failing.Set(one(b.failure() != nil))
	m.refused.Set(one(b.refused != nil))
	m.unfolded.Set(float64(len(b.ahead)))
	m.waiting.Set(float64(len(b.waiting)))
	m.position.set(b.Position())
	if at := b.Position(); at != m.seenAt {
		m.seenAt = at
		m.observeSources(b)
	}
	if head := b.chain.head.Manifest; head != m.seenHead {
		m.seenHead = head
		m.observeHead(b, head)
	}
	if n := int(now.Versions - was.Versions); n > 0 {
		m.versions.Add(float64(n))
		m.keys.Add(float64(b.chain.head.Manifest.GetChangeCount()))
		for _, t := range b.chain.timings[len(b.chain.timings)-n:] {
			m.observeStages(t)
		}
	}
}

// observeSources counts what sources cannot be read for.
func (m *Metrics) observeSources(b *Machine) {
	was := m.sources
	m.sources = map[string]bool{}
	for _, sh := range b.ledger.Fold().Shards() {
		source := sh.Shard.String()
		m.sources[source] = true
		m.frozen.WithLabelValues(source).Set(float64(len(sh.Frozen)))
	}
	for source := range was {
		if !m.sources[source] {
			m.frozen.DeleteLabelValues(source)
		}
	}
}

func (m *Metrics) observeHead(b *Machine, head *store.Manifest) {
	m.head.set(store.VersionOf(head.GetVersion()))
	m.openHolds.Set(float64(len(jury.Holds(b.ledger.Fold()))))
	m.openQuarantines.Set(float64(len(b.ledger.Fold().Quarantines())))
	count := map[problem.Severity]int{}
	for _, d := range head.GetDiagnostics() {
		count[problem.Severity(d.GetSeverity())]++
	}
	for severity, g := range m.diagnostics {
		g.Set(float64(count[severity]))
	}
}

// observeStages counts what a version took. One that no change caused, a new
// segment's for example, has not passed the first stages.
func (m *Metrics) observeStages(t *reportv1.StageTiming) {
	between := func(h prometheus.Histogram, from, to *timestamppb.Timestamp) {
		if !slices.ContainsFunc([]*timestamppb.Timestamp{from, to}, func(t *timestamppb.Timestamp) bool { return t.GetSeconds() <= 0 }) {
			h.Observe(max(0, to.AsTime().Sub(from.AsTime()).Seconds()))
		}
	}
	between(m.logLag, t.GetLogged(), t.GetRead())
	between(m.holdoff, t.GetRead(), t.GetDue())
	between(m.build, t.GetDue(), t.GetBuilt())
	between(m.publish, t.GetBuilt(), t.GetPublished())
}

// committed counts what a version took from the end of its holdoff until it was
// in the file.
func (m *Metrics) committed(took time.Duration) { m.commit.Observe(took.Seconds()) }

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
