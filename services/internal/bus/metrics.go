package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// ConnMetrics returns metrics of one connection; role is what it is for, "builder"
// for example.
func ConnMetrics(role string, nc *Conn) []prometheus.Collector {
	labels := prometheus.Labels{"connection": role}
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "meshlog_bus_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meshlog_bus_connected", ConstLabels: labels,
			Help: "1 while this connection to the bus stands. 0 for long: see whether NATS runs, and what the process's log says.",
		}, func() float64 {
			if nc.IsConnected() {
				return 1
			}
			return 0
		}),
		counter("reconnects_total", "Times that a connection to the bus was renewed. Many: the network, or NATS itself, is not stable.", func() uint64 { return nc.Stats().Reconnects }),
		counter("received_bytes_total", "Bytes received from the bus.", func() uint64 { return nc.Stats().InBytes }),
		counter("sent_bytes_total", "Bytes sent to the bus.", func() uint64 { return nc.Stats().OutBytes }),
	}
}

// streamsEvery is how often it is looked how full the streams are.
const streamsEvery = 5 * time.Second

// StreamMetrics say how full streams of the bus are, as of a few seconds ago.
type StreamMetrics struct {
	js    jetstream.JetStream
	names []string
	log   *slog.Logger

	bytes, maxBytes, messages, oldest, maxAge, missing *prometheus.GaugeVec
}

// NewStreamMetrics makes the metrics of streams; Run sets them.
func NewStreamMetrics(nc *Conn, log *slog.Logger, streams ...string) (*StreamMetrics, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return nil, fmt.Errorf("metrics of streams: %w", err)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshlog_bus_stream_" + name, Help: help}, []string{"stream"})
	}
	return &StreamMetrics{
		js: js, names: streams, log: log,
		bytes:    gauge("bytes", "Bytes that a stream of the bus holds: MESHLOG_EVENTS is the log, MESHLOG_VERSIONS the published versions, OBJ_meshlog_blobs the blobs."),
		maxBytes: gauge("max_bytes", "Bytes that a stream may hold; 0: no limit. The log takes nothing more when it is full: raise --log-mib, or lower --history, before that."),
		messages: gauge("messages", "Messages that a stream holds."),
		oldest:   gauge("oldest_seconds", "Age in seconds of the oldest message of a stream: how far back history reaches."),
		maxAge:   gauge("max_age_seconds", "Age in seconds at which messages of a stream go; 0: they stay."),
		missing:  gauge("replicas_missing", "Copies of a stream that are offline or not up to date. Above 0: bring the NATS server back; one more that fails may stop all writes."),
	}, nil
}

func (m *StreamMetrics) all() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{m.bytes, m.maxBytes, m.messages, m.oldest, m.maxAge, m.missing}
}

// Describe implements prometheus.Collector.
func (m *StreamMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range m.all() {
		g.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *StreamMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, g := range m.all() {
		g.Collect(ch)
	}
}

// Run looks at the streams until ctx is done. What cannot be asked has no
// metrics meanwhile.
func (m *StreamMetrics) Run(ctx context.Context) error {
	tick := time.NewTicker(streamsEvery)
	defer tick.Stop()
	said := ""
	for {
		err := m.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			said = ""
		} else if err.Error() != said {
			said = err.Error()
			m.log.Warn("how full the bus is, is not known", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *StreamMetrics) look(ctx context.Context) error {
	var errs []error
	for _, name := range m.names {
		s, err := m.js.Stream(ctx, name)
		if err != nil {
			for _, g := range m.all() {
				g.DeleteLabelValues(name)
			}
			errs = append(errs, fmt.Errorf("stream %s: %w", name, err))
			continue
		}
		m.set(name, s.CachedInfo())
	}
	return errors.Join(errs...)
}

func (m *StreamMetrics) set(name string, i *jetstream.StreamInfo) {
	m.bytes.WithLabelValues(name).Set(float64(i.State.Bytes))
	m.maxBytes.WithLabelValues(name).Set(float64(max(0, i.Config.MaxBytes)))
	m.messages.WithLabelValues(name).Set(float64(i.State.Msgs))
	m.maxAge.WithLabelValues(name).Set(i.Config.MaxAge.Seconds())
	oldest := 0.0
	if i.State.Msgs > 0 {
		oldest = i.TimeStamp.Sub(i.State.FirstTime).Seconds() // both by the server's clock
	}
	m.oldest.WithLabelValues(name).Set(oldest)
	missing := 0
	if i.Cluster != nil {
		for _, r := range i.Cluster.Replicas {
			if r.Offline || !r.Current {
				missing++
			}
		}
	}
	m.missing.WithLabelValues(name).Set(float64(missing))
}
