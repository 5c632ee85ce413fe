package nacos

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a watcher, labelled with its instance. The program registers
// them.
type Metrics struct {
	prometheus.Collector

	requests                          *prometheus.CounterVec
	connections, pushes               prometheus.Counter
	services, instances, held, unread prometheus.Gauge

	oldest atomic.Pointer[time.Time]
	err    atomic.Pointer[string]
}

// counts are what Metrics shows of services.
type counts struct {
	services, instances, held, unread int
	oldest                            time.Time
}

func (m *Metrics) counted(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.requests.WithLabelValues(result).Inc()
}

// failed notes the last error, for people.
func (m *Metrics) failed(err error) {
	text := err.Error()
	m.err.Store(&text)
}

func (m *Metrics) set(c counts) {
	m.services.Set(float64(c.services))
	m.instances.Set(float64(c.instances))
	m.held.Set(float64(c.held))
	m.unread.Set(float64(c.unread))
	m.oldest.Store(&c.oldest)
}

// NewMetrics makes the metrics of an instance.
func NewMetrics(instance string) *Metrics {
	all := prometheus.NewRegistry()
	m := &Metrics{Collector: all}
	labels := prometheus.Labels{"source": Source + "/" + instance}
	add := promauto.With(prometheus.WrapRegistererWith(labels, prometheus.WrapRegistererWithPrefix("meshlog_nacos_", all)))
	m.requests = add.NewCounterVec(prometheus.CounterOpts{Name: "requests_total", Help: "Lists, subscriptions and queries, by result: ok or failed. See `meshlog sources` for the last error."}, []string{"result"})
	m.connections = add.NewCounter(prometheus.CounterOpts{Name: "connections_total", Help: "Connections to servers. After each but the first, what is missing is held for a minute."})
	m.pushes = add.NewCounter(prometheus.CounterOpts{Name: "pushes_total", Help: "Pushes of the servers, each with all of a service."})
	m.services = add.NewGauge(prometheus.GaugeOpts{Name: "services", Help: "Services that are watched."})
	m.instances = add.NewGauge(prometheus.GaugeOpts{Name: "instances", Help: "Instances that are published, held ones included."})
	m.held = add.NewGauge(prometheus.GaugeOpts{Name: "held_instances", Help: "Instances that Nacos lacks and that stay in service, because the loss is in doubt. Above 0 for long: the registry lost them, or keep-empty is set."})
	m.unread = add.NewGauge(prometheus.GaugeOpts{Name: "unread_services", Help: "Services that could not be read three times in a row: they stay as they are. See `meshlog sources` for the reasons."})
	add.NewGaugeFunc(prometheus.GaugeOpts{Name: "oldest_read_seconds", Help: "Seconds since the service was read that was read longest ago. Each is read once a minute besides its pushes. High: the servers are overloaded."}, func() float64 {
		if at := m.oldest.Load(); at != nil && !at.IsZero() {
			return time.Since(*at).Seconds()
		}
		return 0
	})
	for _, result := range []string{"ok", "failed"} {
		m.requests.WithLabelValues(result)
	}
	return m
}
