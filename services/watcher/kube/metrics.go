package kube

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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
	all := prometheus.NewRegistry()
	prefixed := prometheus.WrapRegistererWithPrefix("meshlog_watcher_kube_", all)
	add := promauto.With(prometheus.WrapRegistererWith(labels, prefixed))
	return &Metrics{
		Collector: all,
		objects:   add.NewGaugeVec(prometheus.GaugeOpts{Name: "objects", Help: "Objects of the cluster, by kind."}, kind),
		undecoded: add.NewGaugeVec(prometheus.GaugeOpts{Name: "undecoded_objects", Help: "Objects that could not be converted: they keep their last good value. `meshlog diagnostics` says why."}, kind),
		lists:     add.NewCounterVec(prometheus.CounterOpts{Name: "lists_total", Help: "Lists of a kind that the watcher requested, as pages and streams. If there are many, watches cannot be resumed."}, kind),
		restarts:  add.NewCounterVec(prometheus.CounterOpts{Name: "watch_restarts_total", Help: "Watches of a kind that were restarted after the previous one ended. A watch lasts 5 to 10 minutes; if restarts are more frequent, the API server or the network cuts them."}, kind),
		podless:   add.NewGauge(prometheus.GaugeOpts{Name: "endpoints_without_pod", Help: "Endpoints that name an unknown pod: they have no labels and no identity, so they are in no subset. If this lasts, check whether the watcher may read pods."}),
	}
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
