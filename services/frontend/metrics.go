package frontend

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/kind"
)

// Metrics of a frontend, in the order in which a version passes its stages:
// receive, push, ACK. The caller of NewMetrics registers them. If istiod has
// the same metric, its name is used, so that istiod's dashboards show it. No
// label names a proxy.
type Metrics struct {
	all     *prometheus.Registry
	refresh atomic.Pointer[func()] // sets the metrics that are computed when scraped

	// What is served.
	epoch, seq                    prometheus.Gauge
	receive, indexing, generation prometheus.Histogram
	behindSeconds, behindRecords  prometheus.Gauge
	persisted, unpersisted        prometheus.Gauge
	classes, maxClasses, parts    prometheus.Gauge
	services, virtuals            prometheus.Gauge
	// Streams.
	streams, waiting, firstAnswers        prometheus.Gauge
	unconverged, unanswered               prometheus.Gauge
	opening, requestBytes                 prometheus.Gauge
	metadataBytes, nameBytes              prometheus.Gauge
	refused, refusedRequests              *prometheus.CounterVec
	silent, overBudget, unused            prometheus.Counter
	sendTimeout, aged, panics             prometheus.Counter
	age                                   prometheus.Histogram
	downgrades, unmatched, suspects       prometheus.Counter
	handshakeFailures, identityMismatches prometheus.Counter
	retaken, unsupported                  prometheus.Counter
	certificates                          *prometheus.GaugeVec
	certificateEnds                       prometheus.Gauge
	// Responses, by type.
	push, acks, convergence, bytes   [ident.ResourceTypes]prometheus.Observer
	pushes, rejects, stale, tooLarge [ident.ResourceTypes]prometheus.Counter
	heldBack                         [ident.ResourceTypes]prometheus.Gauge
	sendSeconds                      prometheus.Histogram
	// Of MCP-over-xDS, by kind.
	sinks                   prometheus.Gauge
	sinkPushes, sinkRejects *prometheus.CounterVec
	sinkBytes               prometheus.Counter
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{all: prometheus.NewRegistry()}
	m.ofVersions()
	m.ofStreams()
	m.ofResponses()
	m.ofSinks()
	return m
}

func (m *Metrics) ofVersions() {
	version := collect(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_frontend_version", Help: "The served version, in two parts. If below meshlog_builder_head for long: this frontend lags; see its log, and check that it reaches the bus.",
	}, []string{"part"}))
	m.epoch, m.seq = version.WithLabelValues("epoch"), version.WithLabelValues("seq")
	m.receive = m.histogram("meshlog_frontend_receive_seconds", "Seconds from the publication of a version, by the leader's clock, until the frontend has received and indexed it. If long: the bus is slow, the frontend lacks CPU, or the clocks differ.", stages())
	m.indexing = m.histogram("pilot_pushcontext_init_seconds", "Seconds to index a version, a part of receive. If long: large changes, or too little CPU.", stages())
	m.generation = m.histogram("meshlog_frontend_generate_seconds", "Seconds to generate the resources of a version for the classes of the connected proxies, a part of push. If long: many classes (meshlog_frontend_resident_classes), or too little CPU.", stages())
	m.behindSeconds = m.gauge("meshlog_frontend_behind_seconds", "Seconds since this frontend learned of the oldest version that it does not serve yet; 0: it serves the newest. If above 5: see its log, and check that it reaches the bus.")
	m.behindRecords = m.gauge("meshlog_frontend_behind_records", "Log records by which the served version is behind the newest known one.")
	m.persisted = m.gauge("meshlog_frontend_persisted", "1 if the served version is in the frontend's local replica.")
	m.unpersisted = m.gauge("meshlog_frontend_unpersisted_seconds", "Seconds since a served version is missing in the frontend's local replica; 0: none is. If above 5: its disk is full or slow, and a restart would need the bus.")
	m.classes = m.gauge("meshlog_frontend_resident_classes", "Classes of proxies whose resources are kept, counted for each type. If near the number of streams: selectors put every proxy in a class of its own.")
	m.maxClasses = m.gauge("meshlog_frontend_max_classes", "Limit of meshlog_frontend_resident_classes (--classes); 0: none. Proxies that would need more are refused.")
	m.parts = m.gauge("meshlog_frontend_resident_parts", "Parts of resources that are kept, shared by all classes.")
	m.services = m.gauge("pilot_services", "Services in the served version.")
	m.virtuals = m.gauge("pilot_virt_services", "VirtualServices in the served version.")
}

func (m *Metrics) ofStreams() {
	m.streams = m.gauge("pilot_xds", "Open streams.")
	m.waiting = m.gauge("meshlog_frontend_streams_waiting", "New streams that wait to begin. If above 0 for long: add frontends, or raise --streams-per-second.")
	m.firstAnswers = m.gauge("meshlog_frontend_first_answers", "Streams that have not acknowledged their first responses.")
	m.unconverged = m.gauge("meshlog_frontend_streams_unconverged", "Streams whose client has not applied all that it should have. If above 0 for long: `meshlog proxy-status` names them.")
	m.unanswered = m.gauge("meshlog_frontend_unanswered_seconds", "Age in seconds of the oldest response without an answer. If above 20: that proxy warms or is stuck; `meshlog proxy-status` names it.")
	m.opening = m.gauge("meshlog_frontend_streams_opening", "Streams that have sent no request yet; each ends after 5 s. If many: a client opens streams that it does not use.")
	m.refused = collect(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshlog_frontend_streams_refused_total", Help: "New streams refused, by reason: admission (too many at once: add frontends, or raise --streams-per-second), address, connections or identity (one client has too many: the log names it; raise --streams-per-address or --streams-per-identity if it is a gateway of many), classes (a proxy would need resources of its own: see meshlog_frontend_max_classes), class-share (so would one whose address or identity has a tenth of them: the log names it), metadata (the clients of an address have too much: the log names it), stranger (its certificate is for a service account of which it is no Pod or WorkloadEntry), generator (a client of MCP-over-xDS on the port of proxies, or a proxy on that of MCP-over-xDS), sink (no entry of mcp.sinks in the MeshPolicy is for it), sinks (too many clients of MCP-over-xDS), not-ready (draining, or no version yet).",
	}, []string{"reason"}))
	for _, reason := range []string{"admission", "address", "identity", "connections", "classes", "class-share", "metadata", "stranger", "generator", "sink", "sinks", "not-ready"} {
		m.refused.WithLabelValues(reason)
	}
	m.refusedRequests = collect(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshlog_frontend_requests_refused_total", Help: "Requests that ended their stream, by reason: malformed (no protobuf message, too many or too long names), node (too large, or no valid text), names (a delta client names too many in all), size (above 64 MiB), compressed, sink (a client of MCP-over-xDS names resources, or too many types). Above 0: the frontend's log names the addresses and says why.",
	}, []string{"reason"}))
	for _, reason := range []string{"malformed", "node", "names", "size", "compressed", "sink"} {
		m.refusedRequests.WithLabelValues(reason)
	}
	m.silent = m.counter("meshlog_frontend_streams_silent_total", "Streams ended because no request came. If many: see meshlog_frontend_streams_opening.")
	m.requestBytes = m.gauge("meshlog_frontend_request_bytes", "Memory of the requests that are being received and decoded, 256 MiB at most.")
	m.overBudget = m.counter("meshlog_frontend_requests_over_budget_total", "Clients whose streams were ended because all requests together took more than 256 MiB and theirs the most. Above 0: the frontend's log names the addresses.")
	m.metadataBytes = m.gauge("meshlog_frontend_metadata_bytes", "Memory of the node metadata of all proxies; equal metadata counts once.")
	m.nameBytes = m.gauge("meshlog_frontend_name_bytes", "Memory of the names that proxies ask for; equal sets of names count once.")
	m.unused = m.counter("meshlog_frontend_connections_unused_total", "Connections that ended without a stream: probes of the port, or clients that do not speak gRPC.")
	m.sendTimeout = m.counter("pilot_xds_write_timeout", "Streams ended because the client did not accept a response in time. If many: the network or the proxies are overloaded; the frontend's log names the proxies.")
	m.aged = m.counter("meshlog_frontend_streams_aged_total", "Streams ended at their maximum age, so that proxies spread over the frontends.")
	m.panics = m.counter("meshlog_frontend_panics_total", "Streams ended by an internal error. Please report each, with the stack from the frontend's log.")
	m.handshakeFailures = m.counter("meshlog_frontend_tls_handshake_failures_total", "Connections whose TLS handshake failed; see the frontend's log.")
	m.identityMismatches = m.counter("meshlog_frontend_identity_mismatches_total", "Streams refused because the client's certificate is for another namespace or service account; the frontend's log names them.")
	m.age = m.histogram("meshlog_frontend_stream_age_seconds", "Age of streams in seconds when they ended. If mostly short: proxies, or the network between, drop them.", []float64{.1, 1, 10, 60, 600, 1800, 3600, 4 * 3600, 24 * 3600})
	m.downgrades = m.counter("meshlog_frontend_possible_downgrades_total", "Clients that named unknown versions and were answered while the bus was away, perhaps with an older version.")
	m.unmatched = m.counter("meshlog_frontend_unmatched_resumes_total", "Resuming clients whose CDS version matches no retained version.")
	m.suspects = m.counter("meshlog_frontend_suspects_total", "CDS sent again because it was neither ACKed nor requested. If many: proxies warm clusters for long; `meshlog proxy-status` names them.")
	m.retaken = m.counter("meshlog_frontend_retaken_total", "Times that added clusters were removed and offered again because they were not ACKed.")
	m.certificates = collect(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "meshlog_frontend_client_certificates", Help: "Streams by the certificate that their connection shows, by state: none, new (half of its time is left, or more), due (less: its holder renews it), old (less than a quarter; the holder may have another one since), overdue (less than a quarter, on a connection that began when it should have been renewed). Overdue above 0: `meshlog certs` names the proxies.",
	}, []string{"state"}))
	m.certificateEnds = m.gauge("meshlog_frontend_client_certificate_expiry_timestamp_seconds", "When the first of the certificates ends that connected clients show, in Unix time; 0: they show none. At its end the frontend closes the connection, and the client connects again with the certificate that it has then.")
	m.unsupported = m.counter("meshlog_frontend_unsupported_requests_total", "Requests for types that are not served.")
}

func (m *Metrics) ofResponses() {
	m.push = m.histograms("meshlog_frontend_push_seconds", "Seconds from having a version until a response that it caused is given to the transport, by type. If long: too little CPU, or slow clients.", stages())
	m.acks = m.histograms("meshlog_frontend_ack_seconds", "Seconds from making a response to its ACK: the proxy's part, with the network. If long: proxies lack CPU or warm clusters.", stages())
	m.convergence = m.histograms("pilot_proxy_convergence_time", "Seconds from the watcher seeing the first change in a version to the ACK of a response that the version caused. If long: the stages tell where, from pilot_debounce_time to meshlog_frontend_ack_seconds.", stages())
	m.pushes = m.counters("pilot_xds_pushes", "Responses sent.")
	m.bytes = m.histograms("pilot_xds_config_size_bytes", "Size of responses in bytes. A gRPC client accepts up to 4 MiB.", prometheus.ExponentialBuckets(1<<10, 4, 9))
	m.sendSeconds = m.histogram("pilot_xds_send_time", "Seconds to give one response to the transport. If long: slow clients.", stages())
	m.rejects = m.counters("pilot_total_xds_rejects", "NACKs received. `meshlog proxy-status` shows the proxy, the resource and the reason.")
	m.heldBack = m.gauges("meshlog_frontend_held_back_resources", "Resources held back from proxies that rejected them, summed over streams. If above 0: correct the objects that `meshlog proxy-status` names.")
	m.stale = m.counters("pilot_xds_expired_nonce", "Requests with a nonce other than the last one; some are normal.")
	m.tooLarge = m.counters("meshlog_frontend_too_large_total", "Responses not sent because they exceed what a gRPC client can receive: let the client import less.")
}

func (m *Metrics) ofSinks() {
	m.sinks = m.gauge("meshlog_frontend_sinks", "Open streams of clients of MCP-over-xDS (--mcp-listen).")
	m.sinkPushes = collect(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshlog_frontend_sink_pushes_total", Help: "Responses sent to clients of MCP-over-xDS, by kind.",
	}, []string{"kind"}))
	m.sinkRejects = collect(m, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshlog_frontend_sink_rejects_total", Help: "NACKs of clients of MCP-over-xDS, by kind. `meshlog proxy-status` shows the client and the reason.",
	}, []string{"kind"}))
	for _, k := range append(kind.Istio(), &kind.Kind{Name: unknownKind}) {
		m.sinkPushes.WithLabelValues(k.Name)
		m.sinkRejects.WithLabelValues(k.Name)
	}
	m.sinkBytes = m.counter("meshlog_frontend_sink_bytes_total", "Bytes of resources sent to clients of MCP-over-xDS: a response holds all objects of its kind.")
}

// stages returns the buckets for the time that a stage takes, in seconds: 0.5
// ms to 33 s.
func stages() []float64 { return prometheus.ExponentialBuckets(.0005, 2, 17) }

func (m *Metrics) counter(name, help string) prometheus.Counter {
	return collect(m, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return collect(m, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return collect(m, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}))
}

func (m *Metrics) counters(name, help string) [ident.ResourceTypes]prometheus.Counter {
	v := collect(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"}))
	return perType(v.WithLabelValues)
}

func (m *Metrics) gauges(name, help string) [ident.ResourceTypes]prometheus.Gauge {
	v := collect(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"type"}))
	return perType(v.WithLabelValues)
}

func (m *Metrics) histograms(name, help string, buckets []float64) [ident.ResourceTypes]prometheus.Observer {
	v := collect(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"}))
	return perType(v.WithLabelValues)
}

func collect[C prometheus.Collector](m *Metrics, c C) C {
	m.all.MustRegister(c)
	return c
}

func perType[T any](with func(...string) T) (all [ident.ResourceTypes]T) {
	for t := range all {
		all[t] = with(ident.ResourceType(t).String())
	}
	return all
}

// serves counts a version that was received at had and is served from now on.
func (m *Metrics) serves(st *replica.State, had, now time.Time) {
	v := st.Version()
	m.epoch.Set(float64(v.Epoch))
	m.seq.Set(float64(v.Seq))
	m.indexing.Observe(st.Indexing.Seconds())
	m.generation.Observe(now.Sub(had).Seconds())
	if at := timeOf(st.Manifest.GetPublishTime()); !at.IsZero() && !st.Received.IsZero() {
		m.receive.Observe(max(0, had.Sub(at).Seconds()))
	}
}

// sent counts a response that was given to the transport; cause is the version
// that caused it, or nil.
func (m *Metrics) sent(t ident.ResourceType, bytes int, start time.Time, cause *versionTimes) {
	now := time.Now()
	m.pushes[t].Inc()
	m.bytes[t].Observe(float64(bytes))
	m.sendSeconds.Observe(now.Sub(start).Seconds())
	if cause != nil {
		m.push[t].Observe(now.Sub(cause.had).Seconds())
	}
}

// acked counts the ACK of a response that was made at sent; cause is the
// version that caused it, or nil.
func (m *Metrics) acked(t ident.ResourceType, sent time.Time, cause *versionTimes) {
	now := time.Now()
	m.acks[t].Observe(now.Sub(sent).Seconds())
	if cause != nil && !cause.observed.IsZero() {
		m.convergence[t].Observe(max(0, now.Sub(cause.observed).Seconds()))
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.all.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if refresh := m.refresh.Load(); refresh != nil {
		(*refresh)()
	}
	m.all.Collect(ch)
}
