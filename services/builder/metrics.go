package builder

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// Metrics are the metrics of a builder, in the order in which a change passes its
// stages: log, holdoff, build, publish. The process registers them. Metrics that
// istiod has too are named as in istiod.
type Metrics struct {
	prometheus.Collector
	counters []counter // of the stats

	// The log.
	unfolded, waiting prometheus.Gauge
	frozen            *prometheus.GaugeVec // by source
	position          place
	logLag            prometheus.Histogram
	// Versions.
	holdoff, build, publish, commit prometheus.Histogram
	keys                            prometheus.Counter
	head                            place
	diagnostics                     map[problem.Severity]prometheus.Gauge
	unenforced                      prometheus.Gauge
	// Overlays that builders append.
	openHolds, openQuarantines, rollouts, stoppedRollouts prometheus.Gauge
	// The leader.
	leader, failing, refused prometheus.Gauge
	away                     atomic.Pointer[away]

	seen     stats           // counted so far
	sources  map[string]bool // in frozen
	seenAt   ident.Position  // of the log, when sources were counted
	seenHead *store.Manifest // when its diagnostics and holds were counted
}

// place is a position, in two gauges.
type place struct{ epoch, seq prometheus.Gauge }

func (p place) set(at ident.Position) {
	p.epoch.Set(float64(at.Epoch))
	p.seq.Set(float64(at.Seq))
}

// counter counts one of the stats.
type counter struct {
	prometheus.Counter
	of func(*stats) uint64
}

// NewMetrics makes the metrics of one builder.
func NewMetrics() *Metrics {
	registry := prometheus.NewRegistry()
	factory := promauto.With(registry)
	m := &Metrics{Collector: registry, sources: map[string]bool{}}
	counts := func(name string, of func(*stats) uint64, help string) {
		m.counters = append(m.counters, counter{factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help}), of})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	twoParts := func(name, help string) place {
		v := factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"part"})
		return place{epoch: v.WithLabelValues("epoch"), seq: v.WithLabelValues("seq")}
	}
	histogram := func(name, help string) prometheus.Histogram { // of the time that a stage takes: 0.5 ms to 16 s
		return factory.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(.0005, 2, 16)})
	}
	counts("meshlog_builder_records_total", func(s *stats) uint64 { return s.Records }, "Records of the log that this builder has folded.")
	counts("meshlog_builder_unreadable_records_total", func(s *stats) uint64 { return s.Unreadable }, "Records that cannot be decoded, which change nothing. Above 0: a watcher has a later build than this builder, or replace the keys that may publish there; `meshlog log` names the subject.")
	counts("meshlog_builder_refused_records_total", func(s *stats) uint64 { return s.Refused }, "Records that no publisher of meshlog appends, which change nothing: content of another source or role than the subject's, an epoch of the far future, or a message that a server made. Above 0: `meshlog log --op refused` names the subject; replace the keys that may publish there.")
	m.unfolded = gauge("meshlog_builder_unfolded_records", "Records that were read and not folded. A standby keeps the records after the head; a leader above 0 for long cannot keep up: give it more CPU.")
	m.position = twoParts("meshlog_builder_position", "Position of the log up to which this builder has folded, in two parts.")
	m.logLag = histogram("meshlog_builder_log_lag_seconds", "Seconds from when the log has the first change of a version (by the bus's clock) until this builder has read it. If it is long, the bus or the network to it is slow, or the clocks differ.")
	m.waiting = gauge("meshlog_builder_waiting_sources", "Required sources that have not listed, for which publishing waits. Above 0 for long: start their watchers, or see `meshlog sources`.")
	m.frozen = factory.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_builder_frozen_kinds",
		Help: "Kinds that a source cannot read (a definition or a permission is gone): their objects stay as they are. Above 0: `meshlog sources` says which kinds, and what to do.",
	}, []string{"source"})
	counts("meshlog_builder_segments_total", func(s *stats) uint64 { return s.Segments }, "Segments and epochs that this builder began: one for each new build, and for each rewind of the log.")
	counts("meshlog_builder_rewinds_total", func(s *stats) uint64 { return s.Recovered }, "Times that the log was not the one that this builder had read. Each is a loss on the bus: find out why its data was restored or deleted.")

	m.holdoff = histogram("pilot_debounce_time", "Seconds that the first change of a version waited for further changes: the holdoff, 500 ms at most, 50 ms with an endpoint among them. Longer: the builder was busy, or waited for a source.")
	m.build = histogram("meshlog_builder_build_seconds", "Seconds to build and check a version. If it is long, changes come late: give the builder more CPU.")
	m.publish = histogram("meshlog_builder_publish_seconds", "Seconds until the bus has a version. If it is long, the disks of the bus or the network to it are slow.")
	m.commit = histogram("meshlog_builder_commit_seconds", "Seconds from the end of the holdoff until a version is published and in the builder's own file. Much more than build and publish: the builder's disk is slow.")
	counts("meshlog_builder_versions_total", func(s *stats) uint64 { return s.Versions }, "Versions that this builder has published.")
	m.keys = factory.NewCounter(prometheus.CounterOpts{Name: "meshlog_builder_changed_keys_total", Help: "Rows of the world that differ from the previous version, summed over the published versions."})
	counts("meshlog_builder_build_errors_total", func(s *stats) uint64 { return s.BuildErrors }, "Builds that failed; the previous version is still served. The builder's log names the error, `meshlog log` the record.")
	counts("meshlog_builder_conflicts_total", func(s *stats) uint64 { return s.Conflicts }, "Fences lost to another builder. Many: two builders lead in turns; see whether the network between them and the bus is cut.")
	m.head = twoParts("meshlog_builder_head", "The newest published version that this builder knows, in two parts. A frontend's meshlog_frontend_version that stays below it lags.")
	diagnostics := factory.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_builder_diagnostics", Help: "Problems in user data in the newest version, 1000 at most. `meshlog diagnostics` lists them, and says what to do.",
	}, []string{"severity"})
	m.diagnostics = map[problem.Severity]prometheus.Gauge{}
	for _, s := range []problem.Severity{problem.Info, problem.Warning, problem.Error} {
		m.diagnostics[s] = diagnostics.WithLabelValues(s.String())
	}

	counts("meshlog_builder_holds_total", func(s *stats) uint64 { return s.Holds }, "Mass losses of a source that were held back.")
	counts("meshlog_builder_quarantines_total", func(s *stats) uint64 { return s.Quarantines }, "Resources that were put into quarantine because proxies rejected them.")
	counts("meshlog_builder_rollout_steps_total", func(s *stats) uint64 { return s.RolloutSteps }, "Steps of rollouts that this builder began.")
	counts("meshlog_builder_rollouts_stopped_total", func(s *stats) uint64 { return s.RolloutsStopped }, "Rollouts that were stopped because proxies rejected what they gave them.")
	m.rollouts = gauge("meshlog_builder_rollouts", "Changes of configuration that have not reached all proxies. Above 0 for long: `meshlog rollout status` says what they wait for.")
	m.stoppedRollouts = gauge("meshlog_builder_stopped_rollouts", "Rollouts that are stopped: all proxies get the version before. Above 0: `meshlog diagnostics` says what to correct; correcting it ends them.")
	m.unenforced = gauge("meshlog_builder_unenforced_policies", "Security policies in the newest version that no proxy enforces, 1000 at most. Above 0: `meshlog diagnostics` names each, and what happens to the requests that it selects.")
	m.openQuarantines = gauge("meshlog_builder_open_quarantines", "Rejections in quarantine, 100 at most and 10 of one client: every frontend serves the last good content of the resources or pieces, or refuses. Above 0: `meshlog diagnostics` says what to correct; correcting it lifts them.")
	m.openHolds = gauge("meshlog_builder_open_holds", "Mass losses that wait for approval. Above 0: `meshlog approve` lists them; approve the intended ones, restore the objects of the others.")

	m.leader = gauge("meshlog_builder_leader", "1 while this builder holds the lease. The sum over all builders should be 1: at 0 for long no version is published; above 1 for long the network is cut.")
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshlog_builder_away_seconds", Help: "Seconds since which this builder is not connected to log and version chain; 0: it is. From 10 s on it is not ready, and /readyz says why.",
	}, m.awaySeconds)
	counts("meshlog_builder_foreign_messages_total", func(s *stats) uint64 { return s.Foreign }, "Messages on the version chain that are no versions, seen behind a head. Readers pass them over. Above 0: a client that is no builder can write there; correct the permissions of the bus.")
	counts("meshlog_builder_claimed_epochs_total", func(s *stats) uint64 { return s.Claimed }, "Epochs that began because a frontend reported a version that the chain does not have, one a minute at most. See why the chain lost it; if it never had it, replace the frontends' key.")
	counts("meshlog_builder_refused_claims_total", func(s *stats) uint64 { return s.Doubted }, "Reports of frontends about versions that cannot exist; nothing was done. The builder's log names the frontend: delete its file, or replace the frontends' key.")
	m.failing = gauge("meshlog_builder_failing", "1 while /debug/builder shows an error.")
	counts("meshlog_builder_compared_roots_total", func(s *stats) uint64 { return s.Compared }, "Versions of other builders whose root this builder found equal to its own.")
	m.refused = gauge("meshlog_builder_refused", "1 after this builder made another content of the same log than the leader; it no longer leads. One of the two machines cannot be trusted: compare with `meshlog verify`.")
	return m
}

func (m *Metrics) awaySeconds() float64 {
	if away := m.away.Load(); away != nil {
		return time.Since(away.since).Seconds()
	}
	return 0
}

// observe updates the metrics. The builder's goroutine calls it.
func (m *Metrics) observe(b *Machine) {
	was, now := m.seen, b.stats
	m.seen = now
	for _, c := range m.counters {
		c.Add(float64(c.of(&now) - c.of(&was)))
	}
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
		m.keys.Add(float64(b.chain.head.Manifest.GetChangeCount()))
		for _, t := range b.chain.timings[len(b.chain.timings)-n:] {
			m.observeStages(t)
		}
	}
}

// observeSources counts the kinds that each source cannot read.
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
	on, stopped := 0, 0
	for _, r := range b.ledger.Fold().Rollouts() {
		switch {
		case len(r.Values) == 0:
		case r.Rollout.State == ident.RolloutStopped:
			stopped++
		default:
			on++
		}
	}
	m.rollouts.Set(float64(on))
	m.stoppedRollouts.Set(float64(stopped))
	count := map[problem.Severity]int{}
	unenforced := 0
	for _, d := range head.GetDiagnostics() {
		count[problem.Severity(d.GetSeverity())]++
		if d.GetCode() == problem.Unenforced {
			unenforced++
		}
	}
	m.unenforced.Set(float64(unenforced))
	for severity, g := range m.diagnostics {
		g.Set(float64(count[severity]))
	}
}

// observeStages observes the stages of a version. A version that no change caused,
// of a new segment for example, has not passed the first ones.
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

// committed observes the time from the end of a version's holdoff until it was in
// the file.
func (m *Metrics) committed(took time.Duration) { m.commit.Observe(took.Seconds()) }

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
