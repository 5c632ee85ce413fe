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

// ConnMetrics returns the metrics of one connection; role names it, "builder" for
// example.
func ConnMetrics(role string, nc *Conn) []prometheus.Collector {
	labels := prometheus.Labels{"connection": role}
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "meshlog_bus_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meshlog_bus_connected", ConstLabels: labels,
			Help: "1 while this connection to the bus is up. If it stays 0, check that NATS runs, and read the log of the process.",
		}, func() float64 {
			if nc.IsConnected() {
				return 1
			}
			return 0
		}),
		counter("reconnects_total", "Times that a connection to the bus was renewed. Many mean that the network or NATS is unstable.", func() uint64 { return nc.Stats().Reconnects }),
		counter("received_bytes_total", "Bytes received from the bus.", func() uint64 { return nc.Stats().InBytes }),
		counter("sent_bytes_total", "Bytes sent to the bus.", func() uint64 { return nc.Stats().OutBytes }),
	}
}

// streamsEvery is how often Run reads the state of the streams.
const streamsEvery = 5 * time.Second

// StreamMetrics are the sizes of streams, at most some seconds old.
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
		bytes:    gauge("bytes", "Bytes in a stream of the bus: MESHLOG_EVENTS is the log, MESHLOG_VERSIONS the published versions, OBJ_meshlog_blobs the blobs."),
		maxBytes: gauge("max_bytes", "Limit of the bytes in a stream; 0: no limit. A full log refuses records: raise --log-mib, or lower --history, before that."),
		messages: gauge("messages", "Messages in a stream."),
		oldest:   gauge("oldest_seconds", "Age in seconds of the oldest message in a stream: how far back history reaches."),
		maxAge:   gauge("max_age_seconds", "Age in seconds at which messages of a stream expire; 0: never."),
		missing:  gauge("replicas_missing", "Replicas of a stream that are offline or lag. Above 0: start the missing NATS server; if another one fails, writes may stop."),
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

// Run reads the streams until ctx is done. A stream that does not answer has no
// metrics meanwhile.
func (m *StreamMetrics) Run(ctx context.Context) error {
	tick := time.NewTicker(streamsEvery)
	defer tick.Stop()
	logged := ""
	for {
		err := m.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			logged = ""
		} else if err.Error() != logged {
			logged = err.Error()
			m.log.Warn("cannot read the size of the streams; their metrics are missing", "error", err)
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
