package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

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

// Metrics returns the metrics of a fleet; role names its connection, as in
// ConnMetrics.
func (f *Fleet) Metrics(role string) []prometheus.Collector {
	all := []prometheus.Collector{prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meshlog_bus_reports_lost_total", ConstLabels: prometheus.Labels{"connection": role},
		Help: "Reports of this process that could not be sent though the bus is connected. Above 0: the log says why; builders and the command line do not see what is in them.",
	}, func() float64 { return float64(f.lost.Load()) })}
	for reason, n := range map[string]*atomic.Uint64{"unreadable": &f.unreadable, "reply": &f.unanswerable, "crowded": &f.crowded} {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "meshlog_bus_messages_refused_total", ConstLabels: prometheus.Labels{"connection": role, "reason": reason},
			Help: "Messages of other processes that this one dropped, by reason: unreadable, reply (it wants its answer on a subject that is no inbox), crowded (a report of one process too many, or of a long name). Above 0: the log names the subject; a process has another build, or replace the keys that may publish there.",
		}, func() float64 { return float64(n.Load()) }))
	}
	return all
}

// StreamMetrics are the sizes of streams. Each scrape reads them from the bus; a
// stream that does not answer has no metrics.
type StreamMetrics struct {
	js     jetstream.JetStream
	names  []string
	log    *slog.Logger
	logged atomic.Value // the error of the last scrape, as text
}

// NewStreamMetrics returns the metrics of streams.
func NewStreamMetrics(nc *Conn, log *slog.Logger, streams ...string) (*StreamMetrics, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("metrics of streams: %w", err)
	}
	return &StreamMetrics{js: js, names: streams, log: log}, nil
}

// streamGauge is one metric of a stream.
type streamGauge struct {
	desc  *prometheus.Desc
	value func(*jetstream.StreamInfo) float64
}

func newStreamGauge(name, help string, value func(*jetstream.StreamInfo) float64) streamGauge {
	return streamGauge{prometheus.NewDesc("meshlog_bus_stream_"+name, help, []string{"stream"}, nil), value}
}

var streamGauges = []streamGauge{
	newStreamGauge("bytes", "Bytes in a stream of the bus: MESHLOG_EVENTS is the log, MESHLOG_VERSIONS the published versions, OBJ_meshlog_blobs the blobs, MESHLOG_AUDIT the audit.",
		func(i *jetstream.StreamInfo) float64 { return float64(i.State.Bytes) }),
	newStreamGauge("max_bytes", "Limit of the bytes in a stream; 0: no limit. A full log refuses records: raise --log-mib, or lower --history, before that.",
		func(i *jetstream.StreamInfo) float64 { return float64(max(0, i.Config.MaxBytes)) }),
	newStreamGauge("messages", "Messages in a stream.",
		func(i *jetstream.StreamInfo) float64 { return float64(i.State.Msgs) }),
	newStreamGauge("oldest_seconds", "Age in seconds of the oldest message in a stream: how far back history reaches.", oldest),
	newStreamGauge("max_age_seconds", "Age in seconds at which messages of a stream expire; 0: never.",
		func(i *jetstream.StreamInfo) float64 { return i.Config.MaxAge.Seconds() }),
	newStreamGauge("replicas_missing", "Replicas of a stream that are offline or lag. Above 0: start the missing NATS server; if another one fails, writes may stop.", replicasMissing),
}

func oldest(i *jetstream.StreamInfo) float64 {
	if i.State.Msgs == 0 {
		return 0
	}
	return i.TimeStamp.Sub(i.State.FirstTime).Seconds() // both by the server's clock
}

func replicasMissing(i *jetstream.StreamInfo) (missing float64) {
	if i.Cluster == nil {
		return 0
	}
	for _, r := range i.Cluster.Replicas {
		if r.Offline || !r.Current {
			missing++
		}
	}
	return missing
}

// Describe implements prometheus.Collector.
func (m *StreamMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range streamGauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (m *StreamMetrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var errs []error
	for _, name := range m.names {
		s, err := m.js.Stream(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", name, err))
			continue
		}
		for _, g := range streamGauges {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value(s.CachedInfo()), name)
		}
	}
	err := errors.Join(errs...)
	if text := fmt.Sprint(err); m.logged.Swap(text) != text && err != nil {
		m.log.Warn("cannot read the size of the streams; their metrics are missing", "error", err)
	}
}
