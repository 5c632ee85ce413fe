package frontend

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
)

// Metrics of a frontend, in the order in which a version passes its stages:
// receive, push, ACK. Main registers them. Where istiod counts the same thing
// the name is istiod's, so that its dashboards show it. No label is a proxy's.
type Metrics struct {
	collectors []prometheus.Collector
	refresh    atomic.Pointer[func()] // sets what is only looked at when it is asked for

	// What is served.
	epoch, seq                         prometheus.Gauge
	receive, indexing, generation      prometheus.Histogram
	behindSeconds, behindRecords       prometheus.Gauge
	persisted, unpersisted             prometheus.Gauge
	classes, parts, services, virtuals prometheus.Gauge
	// Streams.
	streams, waiting, firstAnswers        prometheus.Gauge
	unconverged, unanswered               prometheus.Gauge
	refused, sendTimeout, aged, panics    prometheus.Counter
	age                                   prometheus.Histogram
	downgrades, unmatched, suspects       prometheus.Counter
	handshakeFailures, identityMismatches prometheus.Counter
	retaken, unsupported                  prometheus.Counter
	// Responses, by type.
	push, acks, convergence, bytes   [ident.ResourceTypes]prometheus.Observer
	pushes, rejects, stale, tooLarge [ident.ResourceTypes]prometheus.Counter
	heldBack                         [ident.ResourceTypes]prometheus.Gauge
	sendSeconds                      prometheus.Histogram
}

// NewMetrics makes the metrics; main registers them.
func NewMetrics() *Metrics {
	m := &Metrics{}
	m.ofVersions()
	m.ofStreams()
	m.ofResponses()
	return m
}

func (m *Metrics) ofVersions() {
	version := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_frontend_version", Help: "The version that is served, in two parts. Below meshlog_builder_head for long: this frontend lags; see its log, and whether it reaches the bus.",
	}, []string{"part"})
	m.collectors = append(m.collectors, version)
	m.epoch, m.seq = version.WithLabelValues("epoch"), version.WithLabelValues("seq")
	m.receive = m.histogram("meshlog_frontend_receive_seconds", "Seconds from the publishing of a version, by the leader's clock, until the frontend had it, indexed. If it is long: the bus is slow, the frontend lacks CPU, or the clocks differ.", stages())
	m.indexing = m.histogram("pilot_pushcontext_init_seconds", "Seconds that it took to index a version, a part of receive. If it is long: large changes, or too little CPU.", stages())
	m.generation = m.histogram("meshlog_frontend_generate_seconds", "Seconds that it took to make what the classes of the connected proxies are served of a version, a part of push. If it is long: many classes (meshlog_frontend_resident_classes), or too little CPU.", stages())
	m.behindSeconds = m.gauge("meshlog_frontend_behind_seconds", "Seconds since the first published version that is not served here was heard of; 0: the newest one is served. Above 5: see the frontend's log, and whether it reaches the bus.")
	m.behindRecords = m.gauge("meshlog_frontend_behind_records", "Records of the log by which the version that is served is behind the newest one that was heard of.")
	m.persisted = m.gauge("meshlog_frontend_persisted", "1 when what is served is in the frontend's own store.")
	m.unpersisted = m.gauge("meshlog_frontend_unpersisted_seconds", "Seconds since something is served that is not in the frontend's own store; 0: all is. Above 5: its disk is full or slow; after a restart it would begin from the bus.")
	m.classes = m.gauge("meshlog_frontend_resident_classes", "Classes of proxies whose resources are kept, each type by itself. Near the number of streams: selectors tell every proxy from the others.")
	m.parts = m.gauge("meshlog_frontend_resident_parts", "Parts of resources that are kept, once for all classes.")
	m.services = m.gauge("pilot_services", "Services in the world that is served.")
	m.virtuals = m.gauge("pilot_virt_services", "VirtualServices in the world that is served.")
}

func (m *Metrics) ofStreams() {
	m.streams = m.gauge("pilot_xds", "Streams now open.")
	m.waiting = m.gauge("meshlog_frontend_streams_waiting", "New streams that wait until they may begin. Above 0 for long: add frontends, or raise --streams-per-second.")
	m.firstAnswers = m.gauge("meshlog_frontend_first_answers", "Streams that have not acknowledged their first answers.")
	m.unconverged = m.gauge("meshlog_frontend_streams_unconverged", "Streams whose client has not applied all that it should have. Above 0 for long: `meshlog proxy-status` names them.")
	m.unanswered = m.gauge("meshlog_frontend_unanswered_seconds", "Age in seconds of the oldest response that no client has answered. Above 20: that proxy warms or is stuck; `meshlog proxy-status` names it.")
	m.refused = m.counter("meshlog_frontend_streams_refused_total", "New streams refused: too many, draining, or no version yet. Many: add frontends, or raise --streams-per-second.")
	m.sendTimeout = m.counter("pilot_xds_write_timeout", "Streams ended because the client did not take a response. Many: a network, or proxies, that do not get along; the frontend's log names them.")
	m.aged = m.counter("meshlog_frontend_streams_aged_total", "Streams ended because of their age, so that proxies spread over the frontends.")
	m.panics = m.counter("meshlog_frontend_panics_total", "Streams ended by an error of the program. Each is worth a report, with the stack from the frontend's log.")
	m.handshakeFailures = m.counter("meshlog_frontend_tls_handshake_failures_total", "Connections whose TLS handshake failed; the frontend's log says why.")
	m.identityMismatches = m.counter("meshlog_frontend_identity_mismatches_total", "Streams refused because the client's certificate is of another namespace or service account; the frontend's log names them.")
	m.age = m.histogram("meshlog_frontend_stream_age_seconds", "Age of streams in seconds when they ended. Mostly short: proxies, or what is between, drop them.", []float64{.1, 1, 10, 60, 600, 1800, 3600, 4 * 3600, 24 * 3600})
	m.downgrades = m.counter("meshlog_frontend_possible_downgrades_total", "Clients with versions unknown here that were answered without knowing the head: the bus was away.")
	m.unmatched = m.counter("meshlog_frontend_unmatched_resumes_total", "Resuming clients whose CDS version matched no retained one.")
	m.suspects = m.counter("meshlog_frontend_suspects_total", "CDS sent again because it was neither ACKed nor asked for. Many: proxies warm clusters for long; `meshlog proxy-status` names them.")
	m.retaken = m.counter("meshlog_frontend_retaken_total", "Added clusters taken back and offered again because they were not ACKed.")
	m.unsupported = m.counter("meshlog_frontend_unsupported_requests_total", "Requests for types that are not served.")
}

func (m *Metrics) ofResponses() {
	m.push = m.histograms("meshlog_frontend_push_seconds", "Seconds from the frontend having a version until a response that it caused was given to the transport, by type. If it is long: too little CPU, or clients that take what is sent slowly.", stages())
	m.acks = m.histograms("meshlog_frontend_ack_seconds", "Seconds from such a response being made to its ACK: the proxy's part, network included. If it is long: proxies that lack CPU or warm clusters.", stages())
	m.convergence = m.histograms("pilot_proxy_convergence_time", "Seconds from the first change in a version being seen, by the watcher's clock, to an ACK of a response that the version caused. If it is long: the stages tell where, from pilot_debounce_time to meshlog_frontend_ack_seconds.", stages())
	m.pushes = m.counters("pilot_xds_pushes", "Responses sent.")
	m.bytes = m.histograms("pilot_xds_config_size_bytes", "Size of responses in bytes. A gRPC client takes 4 MiB.", prometheus.ExponentialBuckets(1<<10, 4, 9))
	m.sendSeconds = m.histogram("pilot_xds_send_time", "Seconds that handing one response to the transport took. If it is long: clients that take what is sent slowly.", stages())
	m.rejects = m.counters("pilot_total_xds_rejects", "NACKs received. `meshlog proxy-status` shows what was rejected, by whom and why.")
	m.heldBack = m.gauges("meshlog_frontend_held_back_resources", "Resources held back from proxies that rejected them, summed over streams. Above 0: correct what `meshlog proxy-status` names.")
	m.stale = m.counters("pilot_xds_expired_nonce", "Requests with a nonce that is not the last one; some are normal.")
	m.tooLarge = m.counters("meshlog_frontend_too_large_total", "Responses not sent because a gRPC client could not receive them: let it import less.")
}

// stages are the buckets of what a stage takes, in seconds: 0.5 ms to 33 s.
func stages() []float64 { return prometheus.ExponentialBuckets(.0005, 2, 17) }

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.collectors = append(m.collectors, c)
	return c
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.collectors = append(m.collectors, g)
	return g
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.collectors = append(m.collectors, h)
	return h
}

func (m *Metrics) counters(name, help string) (c [ident.ResourceTypes]prometheus.Counter) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range c {
		c[t] = v.WithLabelValues(ident.ResourceType(t).String())
	}
	return c
}

func (m *Metrics) gauges(name, help string) (g [ident.ResourceTypes]prometheus.Gauge) {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range g {
		g[t] = v.WithLabelValues(ident.ResourceType(t).String())
	}
	return g
}

func (m *Metrics) histograms(name, help string, buckets []float64) (h [ident.ResourceTypes]prometheus.Observer) {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range h {
		h[t] = v.WithLabelValues(ident.ResourceType(t).String())
	}
	return h
}

// serves counts a version that the frontend had at one time and serves from
// another on.
func (m *Metrics) serves(st *replica.State, had, now time.Time) {
	v := st.Version()
	m.epoch.Set(float64(v.Epoch))
	m.seq.Set(float64(v.Seq))
	m.persisted.Set(0)
	m.indexing.Observe(st.Indexing.Seconds())
	m.generation.Observe(now.Sub(had).Seconds())
	if at := timeOf(st.Manifest.GetPublishTime()); !at.IsZero() && !st.Received.IsZero() {
		m.receive.Observe(max(0, had.Sub(at).Seconds()))
	}
}

// sent counts a response that was given to the transport, which took a while;
// cause is the version that caused it, nil if none is known.
func (m *Metrics) sent(t ident.ResourceType, bytes int, start time.Time, cause *versionTimes) {
	now := time.Now()
	m.pushes[t].Inc()
	m.bytes[t].Observe(float64(bytes))
	m.sendSeconds.Observe(now.Sub(start).Seconds())
	if cause != nil {
		m.push[t].Observe(now.Sub(cause.had).Seconds())
	}
}

// acked counts an ACK of a response that a version caused, which was made at
// sent.
func (m *Metrics) acked(t ident.ResourceType, sent time.Time, cause *versionTimes) {
	now := time.Now()
	m.acks[t].Observe(now.Sub(sent).Seconds())
	if cause != nil && !cause.observed.IsZero() {
		m.convergence[t].Observe(max(0, now.Sub(cause.observed).Seconds()))
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if refresh := m.refresh.Load(); refresh != nil {
		(*refresh)()
	}
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}
