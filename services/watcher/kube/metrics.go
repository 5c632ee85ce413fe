package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher/kube/index"
)

// Metrics are the metrics of a cluster's watcher. Their label source is its shard.
type Metrics struct {
	prometheus.Collector

	objects, undecoded *prometheus.GaugeVec   // by kind
	lists, restarts    *prometheus.CounterVec // by kind
	podless            prometheus.Gauge
}

// NewMetrics returns the metrics of the watcher of a cluster.
func NewMetrics(cluster string) *Metrics {
	labels, kind := prometheus.Labels{"source": ident.Shard{Source: Source, Instance: cluster}.String()}, []string{"kind"}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: "meshlog_watcher_kube_" + name, Help: help, ConstLabels: labels}
	}
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts(gauge(name, help)) }
	m := &Metrics{
		objects:   prometheus.NewGaugeVec(gauge("objects", "Objects of the cluster, by kind."), kind),
		undecoded: prometheus.NewGaugeVec(gauge("undecoded_objects", "Objects that could not be converted: they keep their last good value. `meshlog diagnostics` says why."), kind),
		lists:     prometheus.NewCounterVec(counter("lists_total", "Lists of a kind that the watcher requested, as pages and streams. If there are many, watches cannot be resumed."), kind),
		restarts:  prometheus.NewCounterVec(counter("watch_restarts_total", "Watches of a kind that were restarted after the previous one ended. A watch lasts 5 to 10 minutes; if restarts are more frequent, the API server or the network cuts them."), kind),
		podless:   prometheus.NewGauge(gauge("endpoints_without_pod", "Endpoints that name an unknown pod: they have no labels and no identity, so they are in no subset. If this lasts, check whether the watcher may read pods.")),
	}
	all := prometheus.NewRegistry()
	all.MustRegister(m.objects, m.undecoded, m.lists, m.restarts, m.podless)
	m.Collector = all
	return m
}

// update sets the gauges from the figures of an index.
func (m *Metrics) update(by map[string]index.Figures) {
	podless := 0
	for kind, s := range by {
		m.objects.WithLabelValues(kind).Set(float64(s.Objects))
		m.undecoded.WithLabelValues(kind).Set(float64(s.Undecoded))
		podless += s.Podless
	}
	m.podless.Set(float64(podless))
}
