package builder

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/events"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// TestFrozenKinds checks that the builder reports a kind that the watcher can no
// longer read, with its number of keys, and that Digests covers the given kinds.
func TestFrozenKinds(t *testing.T) {
	r, b := servingA(t)
	if frozen := b.Report().GetFrozen(); len(frozen) != 0 {
		t.Errorf("frozen %v, although the watcher reads all kinds", frozen)
	}
	r.session++
	r.append(&events.Begin{Shard: shard, Session: r.sessionName(), Holder: "test"})
	none := new(events.ShardDigests).Sum()
	r.append(&events.Alive{Shard: shard, Session: r.sessionName(), Low: 1, Digest: none, Listed: events.AllBuckets(), Kinds: events.KindsOf("Other")})
	b.settle()
	want := []*reportv1.FrozenKind{{Source: shard.Source, Instance: shard.Instance, Kind: "Thing", Keys: 1}}
	if diff := cmp.Diff(want, b.Report().GetFrozen(), protocmp.Transform()); diff != "" {
		t.Errorf("frozen (-want +got):\n%s", diff)
	}
	if got := frozenKinds(t, b.Machine); !maps.Equal(got, map[string]float64{shard.String(): 1}) {
		t.Errorf("the metric of frozen kinds is %v, want 1", got)
	}
	if diff := cmp.Diff(map[string]string{"a": "good 1"}, r.served()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		kinds events.Kinds
		want  events.Digest
	}{{nil, r.digest()}, {events.KindsOf("Thing"), r.digest()}, {events.KindsOf("Other"), none}} {
		if d, ok := b.Digests(shard, r.sessionName(), test.kinds); !ok || d.Sum() != test.want {
			t.Errorf("digests of %v: known: %t; they do not match the offered objects", test.kinds, ok)
		}
	}
}

// frozenKinds returns the values of the metric, by source.
func frozenKinds(t *testing.T, b *Machine) map[string]float64 {
	t.Helper()
	m := NewMetrics()
	m.observe(b)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "meshlog_builder_frozen_kinds" {
			for _, one := range f.GetMetric() {
				by[one.GetLabel()[0].GetValue()] = one.GetGauge().GetValue()
			}
		}
	}
	return by
}
