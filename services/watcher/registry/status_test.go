package registry_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher/registry"
)

// REG-15: the report and the metrics say the same.
func TestREG15Status(t *testing.T) {
	s := registry.NewStatus(ident.Shard{Source: "consul", Instance: "dc1"})
	if r := s.Report(); r.GetOldestRead() != nil || r.GetErrorTime() != nil || r.GetServices() != 0 {
		t.Errorf("a new status reports %v", r)
	}
	read := time.Now().Add(-time.Hour)
	s.Set(registry.Reading{
		Counts: registry.Counts{Services: 300, Instances: 900}, Doubted: "the connection broke", Polled: 150, Swept: 150,
		Remedy: "use HTTPS", Oldest: read,
	})
	s.Count(nil)
	s.Count(errors.New("no cluster leader"))
	s.Count(nil)
	r := s.Report()
	if r.GetServices() != 300 || r.GetInstances() != 900 || r.GetPolled() != 150 || r.GetSwept() != 150 || r.GetDoubted() != "the connection broke" ||
		r.GetRemedy() != "use HTTPS" || !r.GetOldestRead().AsTime().Equal(read) || r.GetError() != "no cluster leader" || r.GetErrorTime() == nil {
		t.Errorf("reports %v", r)
	}
	all := prometheus.NewRegistry()
	all.MustRegister(s)
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	age := "meshlog_registry_oldest_read_seconds consul/dc1"
	if got[age] < 3600 || got[age] > 3660 {
		t.Errorf("the oldest read is %v s old, want an hour", got[age])
	}
	delete(got, age)
	if want := map[string]float64{
		"meshlog_registry_services consul/dc1": 300, "meshlog_registry_instances consul/dc1": 900, "meshlog_registry_doubted consul/dc1": 1,
		"meshlog_registry_polled_services consul/dc1": 150, "meshlog_registry_swept_services consul/dc1": 150,
		"meshlog_registry_reads_total failed consul/dc1": 1, "meshlog_registry_reads_total ok consul/dc1": 2,
	}; !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}
