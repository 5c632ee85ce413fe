package mcpxds

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"meshlog.dev/proto/ident"
)

// Metrics are the metrics of a watcher, besides those of a registry.Status. Their label
// source is its shard.
type Metrics struct {
	prometheus.Collector

	objects    *prometheus.GaugeVec // by kind
	unanswered prometheus.Gauge
}

// NewMetrics makes the metrics of the watcher of an instance.
func NewMetrics(instance string) *Metrics {
	all := prometheus.NewRegistry()
	labels := prometheus.Labels{"source": ident.Shard{Source: Source, Instance: instance}.String()}
	add := promauto.With(prometheus.WrapRegistererWith(labels, prometheus.WrapRegistererWithPrefix("meshlog_mcpxds_", all)))
	return &Metrics{
		Collector:  all,
		objects:    add.NewGaugeVec(prometheus.GaugeOpts{Name: "objects", Help: "Objects of the source, by kind."}, []string{"kind"}),
		unanswered: add.NewGauge(prometheus.GaugeOpts{Name: "unanswered_kinds", Help: "Kinds for which the source does not answer: their objects stay as they are. `meshlog sources` names them."}),
	}
}

// set updates the gauges after the listing.
func (m *Metrics) set(sets []*set) {
	unanswered := 0
	for _, s := range sets {
		m.objects.WithLabelValues(s.kind.Name).Set(float64(s.total().Services))
		if s.awaited() && !s.covered {
			unanswered++
		}
	}
	m.unanswered.Set(float64(unanswered))
}
