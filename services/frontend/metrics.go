package frontend

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/services/internal/model"
)

// Metrics of a frontend; README.md lists them. Where istiod counts the same
// thing the name is istiod's, so that its dashboards show it.
type Metrics struct {
	collectors []prometheus.Collector
	refresh    atomic.Pointer[func()] // sets what is only looked at when it is asked for

	// Streams.
	streams, waiting, firstAnswers     prometheus.Gauge
	refused, sendTimeout, aged, panics prometheus.Counter
	age                                prometheus.Histogram
	downgrades, unmatched, suspects    prometheus.Counter
	handshakeFailures, impostors       prometheus.Counter
	retaken, unsupported               prometheus.Counter
	// Responses, by type.
	pushes, rejects, stale, tooLarge [model.ResourceTypes]prometheus.Counter
	bytes, convergence               [model.ResourceTypes]prometheus.Observer
	heldBack                         [model.ResourceTypes]prometheus.Gauge
	sendSeconds                      prometheus.Histogram
	// What is served.
	epoch, seq, persisted prometheus.Gauge
	classes, parts        prometheus.Gauge
}

// NewMetrics makes the metrics; main registers them.
func NewMetrics() *Metrics {
	m := &Metrics{}
	m.streams = m.gauge("pilot_xds", "Streams now open.")
	m.waiting = m.gauge("meshlog_frontend_streams_waiting", "New streams that wait until they may begin.")
	m.firstAnswers = m.gauge("meshlog_frontend_first_answers", "Streams that have not acknowledged their first answers.")
	m.refused = m.counter("meshlog_frontend_streams_refused_total", "New streams refused: too many, draining, or no version yet.")
	m.sendTimeout = m.counter("pilot_xds_write_timeout", "Streams ended because the client did not take a response.")
	m.aged = m.counter("meshlog_frontend_streams_aged_total", "Streams ended because of their age.")
	m.panics = m.counter("meshlog_frontend_panics_total", "Streams ended by an error of the program; its log says where.")
	m.handshakeFailures = m.counter("meshlog_frontend_tls_handshake_failures_total", "Connections whose TLS handshake failed; the log says why.")
	m.impostors = m.counter("meshlog_frontend_identity_mismatches_total", "Streams refused because the client's certificate is of another namespace or service account.")
	m.age = m.histogram(prometheus.HistogramOpts{
		Name: "meshlog_frontend_stream_age_seconds", Help: "Age of streams when they ended.",
		Buckets: []float64{.1, 1, 10, 60, 600, 1800, 3600, 4 * 3600, 24 * 3600},
	})
	m.downgrades = m.counter("meshlog_frontend_possible_downgrades_total", "Clients with versions unknown here that were answered without knowing the head.")
	m.unmatched = m.counter("meshlog_frontend_unmatched_resumes_total", "Resuming clients whose CDS version matched no retained one.")
	m.suspects = m.counter("meshlog_frontend_suspects_total", "CDS sent again because it was neither ACKed nor asked for.")
	m.retaken = m.counter("meshlog_frontend_retaken_total", "Added clusters taken back and offered again because they were not ACKed.")
	m.unsupported = m.counter("meshlog_frontend_unsupported_requests_total", "Requests for types that are not served.")

	seconds := []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}
	m.pushes = m.counters("pilot_xds_pushes", "Responses sent.")
	m.rejects = m.counters("pilot_total_xds_rejects", "NACKs received.")
	m.stale = m.counters("pilot_xds_expired_nonce", "Requests with a nonce that is not the last one.")
	m.tooLarge = m.counters("meshlog_frontend_too_large_total", "Responses not sent because a gRPC client could not receive them.")
	m.bytes = m.histograms("pilot_xds_config_size_bytes", "Size of responses.", prometheus.ExponentialBuckets(1<<10, 4, 9))
	m.convergence = m.histograms("pilot_proxy_convergence_time", "Seconds from the publishing of a version to its ACK by one proxy.", seconds)
	m.heldBack = m.gauges("meshlog_frontend_held_back_resources", "Resources held back from proxies that rejected them, summed over streams.")
	m.sendSeconds = m.histogram(prometheus.HistogramOpts{
		Name: "pilot_xds_send_time", Help: "Seconds that handing one response to the transport took.", Buckets: seconds,
	})

	version := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshlog_frontend_version", Help: "The version that is served."}, []string{"part"})
	m.collectors = append(m.collectors, version)
	m.epoch, m.seq = version.WithLabelValues("epoch"), version.WithLabelValues("seq")
	m.persisted = m.gauge("meshlog_frontend_persisted", "1 when what is served is in the frontend's own store.")
	m.classes = m.gauge("meshlog_frontend_resident_classes", "Classes of proxies whose resources are kept, each type by itself.")
	m.parts = m.gauge("meshlog_frontend_resident_parts", "Parts of resources that are kept, once for all classes.")
	return m
}

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

func (m *Metrics) histogram(o prometheus.HistogramOpts) prometheus.Histogram {
	h := prometheus.NewHistogram(o)
	m.collectors = append(m.collectors, h)
	return h
}

func (m *Metrics) counters(name, help string) (c [model.ResourceTypes]prometheus.Counter) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range c {
		c[t] = v.WithLabelValues(model.ResourceType(t).String())
	}
	return c
}

func (m *Metrics) gauges(name, help string) (g [model.ResourceTypes]prometheus.Gauge) {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range g {
		g[t] = v.WithLabelValues(model.ResourceType(t).String())
	}
	return g
}

func (m *Metrics) histograms(name, help string, buckets []float64) (h [model.ResourceTypes]prometheus.Observer) {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"})
	m.collectors = append(m.collectors, v)
	for t := range h {
		h[t] = v.WithLabelValues(model.ResourceType(t).String())
	}
	return h
}

// sent counts a response that was given to the transport.
func (m *Metrics) sent(t model.ResourceType, bytes int, took time.Duration) {
	m.pushes[t].Inc()
	m.bytes[t].Observe(float64(bytes))
	m.sendSeconds.Observe(took.Seconds())
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
