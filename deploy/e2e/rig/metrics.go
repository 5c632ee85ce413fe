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
	m := Metric{Name: f.GetName(), Help: f.GetHelp()}
	labels := map[string]bool{}
	for _, one := range f.GetMetric() {
		for _, l := range one.GetLabel() {
			labels[l.GetName()] = true
		}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			m.Type = "counter"
			m.Sum += one.GetCounter().GetValue()
		case dto.MetricType_GAUGE:
			m.Type = "gauge"
			m.Sum += one.GetGauge().GetValue()
		case dto.MetricType_HISTOGRAM:
			m.Type = "histogram"
			m.Sum += float64(one.GetHistogram().GetSampleCount())
		}
	}
	m.Labels = slices.Sorted(maps.Keys(labels))
	return m
}
