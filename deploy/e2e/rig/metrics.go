package rig

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metric is a metric that a server exports.
type Metric struct {
	Name, Help string
	Type       string   // counter, gauge or histogram
	Labels     []string // sorted
	// Sum adds up the values of all label values; for a histogram, the numbers of
	// observations.
	Sum float64
	// By has the sum for each value of each label, by LABEL=VALUE.
	By map[string]float64
}

// Metrics reads the metrics that the server exports to Prometheus, by name.
func (s *Server) Metrics(ctx context.Context) (map[string]Metric, error) {
	text, err := httpGet(ctx, "http://"+loopback(s.Admin)+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", s.Name, err)
	}
	metrics := map[string]Metric{}
	for name, f := range families {
		metrics[name] = metricOf(f)
	}
	return metrics, nil
}

func metricOf(f *dto.MetricFamily) Metric {
	m := Metric{Name: f.GetName(), Help: f.GetHelp(), By: map[string]float64{}}
	labels := map[string]bool{}
	for _, one := range f.GetMetric() {
		var value float64
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			m.Type, value = "counter", one.GetCounter().GetValue()
		case dto.MetricType_GAUGE:
			m.Type, value = "gauge", one.GetGauge().GetValue()
		case dto.MetricType_HISTOGRAM:
			m.Type, value = "histogram", float64(one.GetHistogram().GetSampleCount())
		}
		m.Sum += value
		for _, l := range one.GetLabel() {
			labels[l.GetName()] = true
			m.By[l.GetName()+"="+l.GetValue()] += value
		}
	}
	m.Labels = slices.Sorted(maps.Keys(labels))
	return m
}
