package jwks

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of the watcher. The program registers them.
type Metrics struct {
	prometheus.Collector

	fetches                     *prometheus.CounterVec
	issuers, failing, unfetched prometheus.Gauge
	oldest                      atomic.Pointer[time.Time]
}

// counts are what Metrics shows of issuers.
type counts struct {
	issuers, failing, unfetched, leftOut int
	oldest                               time.Time
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	all := prometheus.NewRegistry()
	m := &Metrics{Collector: all}
	add := promauto.With(prometheus.WrapRegistererWithPrefix("meshlog_jwks_", all))
	m.fetches = add.NewCounterVec(prometheus.CounterOpts{Name: "fetches_total", Help: "Fetches of key sets of token issuers, by result: ok or failed. See `meshlog sources` for the reasons."}, []string{"result"})
	m.issuers = add.NewGauge(prometheus.GaugeOpts{Name: "issuers", Help: "Token issuers whose keys are fetched."})
	m.failing = add.NewGauge(prometheus.GaugeOpts{Name: "failing_issuers", Help: "Token issuers whose last fetch failed: their keys stay as they are. See `meshlog sources` for the reasons."})
	m.unfetched = add.NewGauge(prometheus.GaugeOpts{Name: "unfetched_issuers", Help: "Token issuers without a good fetch since this watcher began its session. The log may have earlier keys of them; without those no token is verified."})
	add.NewGaugeFunc(prometheus.GaugeOpts{Name: "oldest_fetch_seconds", Help: "Seconds since the oldest of the last good fetches of each issuer; 0: there is none. High: tokens with a newer key of that issuer are refused."}, func() float64 {
		if at := m.oldest.Load(); at != nil && !at.IsZero() {
			return time.Since(*at).Seconds()
		}
		return 0
	})
	for _, result := range []string{"ok", "failed"} {
		m.fetches.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) count(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.fetches.WithLabelValues(result).Inc()
}

func (m *Metrics) set(c counts) {
	m.issuers.Set(float64(c.issuers + c.leftOut))
	m.failing.Set(float64(c.failing))
	m.unfetched.Set(float64(c.unfetched + c.leftOut))
	m.oldest.Store(&c.oldest)
}
