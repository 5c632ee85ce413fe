package admission

import "github.com/prometheus/client_golang/prometheus"

// Outcomes of a request.
const (
	outcomeAllowed   = "allowed"
	outcomeRefused   = "refused"
	outcomeProbe     = "probe"
	outcomeMalformed = "malformed"
)

// Metrics of a webhook.
type Metrics struct {
	// Enforced is 1 while the API server refuses objects that the webhook cannot check,
	// Paused while an operator has paused that. Leads is 1 in the process that keeps the
	// webhook's configuration, and Trouble while it cannot.
	Enforced, Paused, Leads, Trouble prometheus.Gauge

	requests *prometheus.CounterVec
	seconds  prometheus.Histogram
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		Enforced: gauge("meshlog_admission_enforced", "1 while the API server refuses objects that the webhook cannot check (failurePolicy Fail). It is 0 from the installation until the webhook has refused an invalid object, and while it is paused."),
		Paused:   gauge("meshlog_admission_paused", "1 while an operator has paused the webhook. `meshlog admission resume` ends that."),
		Leads:    gauge("meshlog_admission_leader", "1 in the process that keeps the webhook's configuration."),
		Trouble:  gauge("meshlog_admission_configuration_trouble", "1 while the webhook's configuration cannot be read or written; /readyz and the log say why."),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meshlog_admission_requests_total", Help: "Requests of the API server, by outcome: allowed, refused (an invalid object), probe (the webhook's test of itself), malformed (no request of an API server).",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "meshlog_admission_review_seconds", Help: "Seconds to answer a request. The API server waits for 5.", Buckets: prometheus.ExponentialBuckets(.0002, 2, 15),
		}),
	}
	for _, o := range []string{outcomeAllowed, outcomeRefused, outcomeProbe, outcomeMalformed} {
		m.requests.WithLabelValues(o)
	}
	return m
}

// Collectors returns the metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.Enforced, m.Paused, m.Leads, m.Trouble, m.requests, m.seconds}
}
