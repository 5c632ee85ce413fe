package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher/kube/index"
)

// Metrics are what the watcher of a cluster counts; their label is its shard.
// Main registers them.
type Metrics struct {
	objects, undecoded *prometheus.GaugeVec   // by kind
	lists, restarts    *prometheus.CounterVec // by kind
	podless            prometheus.Gauge
}

// NewMetrics makes the metrics of the watcher of a cluster.
func NewMetrics(cluster string) *Metrics {
	labels := prometheus.Labels{"source": ident.Shard{Source: Source, Instance: cluster}.String()}
	gauges := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshlog_watcher_kube_" + name, Help: help, ConstLabels: labels}, []string{"kind"})
	}
	counters := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meshlog_watcher_kube_" + name, Help: help, ConstLabels: labels}, []string{"kind"})
	}
	return &Metrics{
		objects:   gauges("objects", "Objects of the cluster, by kind."),
		undecoded: gauges("undecoded_objects", "Objects that could not be converted: they keep their last good value. `meshlog diagnostics` says why."),
		lists:     counters("lists_total", "Lists of a kind that were asked of the API server, pages and streams. Many: watches cannot be gone on with."),
		restarts:  counters("watch_restarts_total", "Watches of a kind begun again where the one before ended. Each lasts 5 to 10 minutes; more than that: the API server or the network to it cuts them."),
		podless:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshlog_watcher_kube_endpoints_without_pod", Help: "Endpoints that name a pod which is not known: they have no labels and no identity, so are in no subset. For long: see whether pods may be read.", ConstLabels: labels}),
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.objects, m.undecoded, m.lists, m.restarts, m.podless}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

// tell takes in what an index holds.
func (m *Metrics) tell(by map[string]index.Figures) {
	podless := 0
	for kind, s := range by {
		m.objects.WithLabelValues(kind).Set(float64(s.Objects))
		m.undecoded.WithLabelValues(kind).Set(float64(s.Undecoded))
		podless += s.Podless
	}
	m.podless.Set(float64(podless))
}
