package registry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// Reading says how a watcher reads its registry (REG-15).
type Reading struct {
	// Counts of the last listing and the changes after it.
	Counts
	// Doubted is why the last listing removed nothing; empty: it could.
	Doubted string
	// Polled services report each change at once; those that are Swept are read in turn.
	Polled, Swept int
	// Remedy tells users what to change so that every service is polled.
	Remedy string
	// Oldest is when the service was read that was not read for the longest time; zero:
	// not all were read yet, or there are none.
	Oldest time.Time
}

// Status holds the newest Reading of a watcher and the last error of a read, for
// `meshlog sources` and as metrics labelled with the shard. The program registers the
// metrics. It is safe for concurrent use.
type Status struct {
	prometheus.Collector

	services, instances, polled, swept, doubted prometheus.Gauge
	reads                                       *prometheus.CounterVec // by result

	mu      sync.Mutex
	reading Reading
	err     string
	failed  time.Time // when err was
}

// NewStatus makes the status of the watcher of a shard.
func NewStatus(shard ident.Shard) *Status {
	all := prometheus.NewRegistry()
	s := &Status{Collector: all}
	labels := prometheus.Labels{"source": shard.String()}
	add := promauto.With(prometheus.WrapRegistererWith(labels, prometheus.WrapRegistererWithPrefix("meshlog_registry_", all)))
	gauge := func(name, help string) prometheus.Gauge {
		return add.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	s.services = gauge("services", "Services of the registry that the watcher publishes.")
	s.instances = gauge("instances", "Instances of these services, unhealthy ones too.")
	s.polled = gauge("polled_services", "Services of which the registry reports each change at once.")
	s.swept = gauge("swept_services", "Services that are read in turn, so that a change may be seen late. `meshlog sources` says what to do.")
	s.doubted = gauge("doubted", "1 while the last listing lacks so much that it removes nothing before a second one agrees. `meshlog sources` has the reason.")
	add.NewGaugeFunc(prometheus.GaugeOpts{Name: "oldest_read_seconds", Help: "Seconds since the read of the service that was not read for the longest time; 0: not all were read yet. High: the registry is too slow for so many services."}, s.age)
	s.reads = add.NewCounterVec(prometheus.CounterOpts{Name: "reads_total", Help: "Answers of the registry, by result: ok or failed. `meshlog sources` has the last error."}, []string{"result"})
	for _, result := range []string{"ok", "failed"} {
		s.reads.WithLabelValues(result)
	}
	return s
}

// Set replaces the reading.
func (s *Status) Set(r Reading) {
	s.services.Set(float64(r.Services))
	s.instances.Set(float64(r.Instances))
	s.polled.Set(float64(r.Polled))
	s.swept.Set(float64(r.Swept))
	doubted := 0.
	if r.Doubted != "" {
		doubted = 1
	}
	s.doubted.Set(doubted)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading = r
}

// Count counts an answer of the registry. The last error that is not nil is reported.
func (s *Status) Count(err error) {
	if err == nil {
		s.reads.WithLabelValues("ok").Inc()
		return
	}
	s.reads.WithLabelValues("failed").Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.failed = err.Error(), time.Now()
}

func (s *Status) age() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading.Oldest.IsZero() {
		return 0
	}
	return time.Since(s.reading.Oldest).Seconds()
}

// Report returns the status as it is reported on the bus.
func (s *Status) Report() *reportv1.RegistryReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &reportv1.RegistryReport{
		Services: uint64(s.reading.Services), Instances: uint64(s.reading.Instances), Doubted: s.reading.Doubted,
		Polled: uint64(s.reading.Polled), Swept: uint64(s.reading.Swept), Remedy: s.reading.Remedy, Error: s.err,
	}
	if !s.reading.Oldest.IsZero() {
		r.OldestRead = timestamppb.New(s.reading.Oldest)
	}
	if s.err != "" {
		r.ErrorTime = timestamppb.New(s.failed)
	}
	return r
}
