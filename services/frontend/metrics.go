package frontend

import "github.com/prometheus/client_golang/prometheus"

// Metrics of a frontend. Where istiod counts the same thing the name is
// istiod's, so that its dashboards show it.
type Metrics struct {
	Streams     prometheus.Gauge         // pilot_xds
	Pushes      *prometheus.CounterVec   // pilot_xds_pushes{type}
	Rejects     *prometheus.CounterVec   // pilot_total_xds_rejects{type}
	Stale       *prometheus.CounterVec   // pilot_xds_expired_nonce{type}
	SendTimeout prometheus.Counter       // pilot_xds_write_timeout
	SendSeconds prometheus.Histogram     // pilot_xds_send_time
	Bytes       *prometheus.HistogramVec // pilot_xds_config_size_bytes{type}
	Convergence *prometheus.HistogramVec // pilot_proxy_convergence_time{type}: from the version's publish to the ACK
	Refused     prometheus.Counter       // meshlog_frontend_streams_refused_total
	Downgrades  prometheus.Counter       // meshlog_frontend_possible_downgrades_total
	Unmatched   prometheus.Counter       // meshlog_frontend_unmatched_resumes_total
	Suspects    prometheus.Counter       // meshlog_frontend_suspects_total
	Unsupported prometheus.Counter       // meshlog_frontend_unsupported_requests_total
	Version     *prometheus.GaugeVec     // meshlog_frontend_version{part="epoch"|"seq"}
	Persisted   prometheus.Gauge         // meshlog_frontend_persisted: 1 or 0
	collectors  []prometheus.Collector
}

// NewMetrics makes the metrics; main registers them.
func NewMetrics() *Metrics {
	m := &Metrics{}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.collectors = append(m.collectors, c)
		return c
	}
	byType := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
		m.collectors = append(m.collectors, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		m.collectors = append(m.collectors, g)
		return g
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"})
		m.collectors = append(m.collectors, h)
		return h
	}
	seconds := []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}

	m.Streams = gauge("pilot_xds", "Streams now open.")
	m.Pushes = byType("pilot_xds_pushes", "Responses sent.")
	m.Rejects = byType("pilot_total_xds_rejects", "NACKs received.")
	m.Stale = byType("pilot_xds_expired_nonce", "Requests with a nonce that is not the last one.")
	m.SendTimeout = counter("pilot_xds_write_timeout", "Streams ended because the client did not take a response.")
	m.SendSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pilot_xds_send_time", Help: "Seconds that handing one response to the transport took.", Buckets: seconds})
	m.collectors = append(m.collectors, m.SendSeconds)
	m.Bytes = histogram("pilot_xds_config_size_bytes", "Size of responses.", prometheus.ExponentialBuckets(1<<10, 4, 9))
	m.Convergence = histogram("pilot_proxy_convergence_time", "Seconds from the publishing of a version to its ACK by one proxy.", seconds)
	m.Refused = counter("meshlog_frontend_streams_refused_total", "New streams refused: too many in a second, draining, or no version yet.")
	m.Downgrades = counter("meshlog_frontend_possible_downgrades_total", "Clients with versions unknown here that were answered without knowing the head.")
	m.Unmatched = counter("meshlog_frontend_unmatched_resumes_total", "Resuming clients whose CDS version matched no retained one.")
	m.Suspects = counter("meshlog_frontend_suspects_total", "CDS sent again because it was neither ACKed nor asked for.")
	m.Unsupported = counter("meshlog_frontend_unsupported_requests_total", "Requests for types that are not served.")
	m.Version = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshlog_frontend_version", Help: "The version that is served."}, []string{"part"})
	m.collectors = append(m.collectors, m.Version)
	m.Persisted = gauge("meshlog_frontend_persisted", "1 when what is served is in the frontend's own store.")
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
