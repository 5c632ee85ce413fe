package content

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	. "meshlog.dev/services/mesh/meshtest"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

const (
	userAgent = "envoy 1.38.0"
	release   = userAgent + " (state of the world)"
)

// as joins as a client of a cluster, with a user agent.
func (m *mesh) as(cluster, agent string) *listener {
	return m.joinAs(&proxy.Proxy{ID: cluster, Cluster: cluster, UserAgent: agent})
}

// timeouts returns the connect timeouts of the clusters of a view, by name.
func timeouts(t *testing.T, v View) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	for _, r := range v.Sets[ident.CDS].Resources {
		c := Cluster("", 0)
		if err := proto.Unmarshal(r.Value(), c); err != nil {
			t.Fatal(err)
		}
		got[r.Name] = c.GetConnectTimeout().GetSeconds()
	}
	return got
}

func TestQuarantine(t *testing.T) {
	m := newMesh(t, Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)), Put("ea", Endpoints("a", 1)))
	one, two, other := m.as("m", userAgent), m.as("n", userAgent), m.as("m", "envoy 1.37.0")
	for _, l := range []*listener{one, two, other} {
		l.Watch(ident.CDS, Watch{All: true})
	}
	m.change(Put("b", Cluster("b", 2)))
	made := one.View()
	bad := made.Sets[ident.CDS].Find("b").Sum
	for _, step := range []struct {
		name        string
		change      Change
		want        map[string]int64
		others      int64 // b's timeout for clients of other releases
		quarantined []string
	}{
		{"the last good content is served instead", Quarantine("q", release, ident.CDS, "b", bad, Cluster("b", 1)), map[string]int64{"a": 1, "b": 1}, 2, []string{"b"}},
		{"another resource changes", Put("a", Cluster("a", 3)), map[string]int64{"a": 3, "b": 1}, 2, []string{"b"}},
		{"no good content is known", Quarantine("q", release, ident.CDS, "b", bad, nil), map[string]int64{"a": 3}, 2, []string{"b"}},
		{"its content changes", Put("b", Cluster("b", 3)), map[string]int64{"a": 3, "b": 3}, 3, nil},
		{"the rejected content is back", Put("b", Cluster("b", 2)), map[string]int64{"a": 3}, 2, []string{"b"}},
		{"the quarantine is lifted", Quarantine("q", "", ident.CDS, "", bad, nil).Gone(), map[string]int64{"a": 3, "b": 2}, 2, nil},
	} {
		m.change(step.change)
		v, w, o := one.View(), two.View(), other.View()
		if diff := cmp.Diff(step.want, timeouts(t, v)); diff != "" {
			t.Errorf("%s: clusters (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.quarantined, v.Quarantined[ident.CDS]); diff != "" {
			t.Errorf("%s: in quarantine (-want +got):\n%s", step.name, diff)
		}
		if got := timeouts(t, o); got["b"] != step.others || o.Quarantined[ident.CDS] != nil {
			t.Errorf("%s: of another release: %v", step.name, got)
		}
		if v.Sets != w.Sets {
			t.Errorf("%s: classes that are served the same have different sets", step.name)
		}
		if v.Sets[ident.EDS] != o.Sets[ident.EDS] {
			t.Errorf("%s: a type without quarantine differs", step.name)
		}
		var sum xds.Sum
		for _, r := range v.Sets[ident.CDS].Resources {
			sum = sum.Add(r.Sum)
		}
		if sum != v.Sets[ident.CDS].Sum {
			t.Errorf("%s: the sum of the set does not match its resources", step.name)
		}
		if !one.was() {
			t.Errorf("%s: no client was woken", step.name)
		}
	}
}

// The replacement of a quarantined resource is a resource like any other: the cache
// knows which clusters it refers to.
func TestQuarantineFacts(t *testing.T) {
	m := newMesh(t, Put("r", Routes("r", To("a", 1))))
	l := m.as("m", userAgent)
	m.change(Quarantine("q", release, ident.RDS, "r", l.View().Sets[ident.RDS].Find("r").Sum, Routes("r", To("b", 1))))
	r := l.View().Sets[ident.RDS].Find("r")
	if !r.RefersTo("b") || r.RefersTo("a") {
		t.Error("the clusters of the replacement are not known")
	}
	fresh := newMesh(t, Put("r", Routes("r", To("b", 1)))).as("m", userAgent).View().Sets[ident.RDS].Find("r")
	if fresh.Sum != r.Sum {
		t.Error("the same content has another sum")
	}
}

// served describes the clusters of a view.
type served struct {
	Sum         xds.Sum
	Quarantined []string
}

func clusters(v View) served { return served{v.Sets[ident.CDS].Sum, v.Quarantined[ident.CDS]} }

// A client's past has the content that it was served at each version, with the
// quarantine of that time, so that a resuming client is recognised.
func TestQuarantineInThePast(t *testing.T) {
	m := newMesh(t, Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)))
	l := m.as("m", userAgent)
	bad := l.View().Sets[ident.CDS].Find("b").Sum
	var want []served
	for _, change := range []Change{
		Quarantine("q", release, ident.CDS, "b", bad, Cluster("b", 7)),
		Put("a", Cluster("a", 2)),
		Quarantine("q", release, ident.CDS, "b", bad, nil),
		Quarantine("q", "", ident.CDS, "", bad, nil).Gone(),
	} {
		want = append([]served{clusters(l.View())}, want...)
		m.change(change)
	}
	past := func(l *listener) (all []served) {
		for v := range l.Past() {
			all = append(all, clusters(v))
		}
		return all
	}
	if diff := cmp.Diff(want, past(l)); diff != "" {
		t.Errorf("of an earlier client (-want +got):\n%s", diff)
	}
	l.Leave()
	m.change() // its classes are forgotten
	late := m.as("m", userAgent)
	if diff := cmp.Diff(append([]served{clusters(late.View())}, want...), past(late)); diff != "" {
		t.Errorf("of a later client (-want +got):\n%s", diff)
	}
}

// A quarantine concerns the clients of one protocol: those of the same version that
// use the other one get what was rejected (PRO-5).
func TestQuarantineOfOneProtocol(t *testing.T) {
	m := newMesh(t, Put("b", Cluster("b", 1)))
	sotw := m.joinAs(&proxy.Proxy{ID: "s", Cluster: "m", UserAgent: userAgent})
	delta := m.joinAs(&proxy.Proxy{ID: "d", Cluster: "m", UserAgent: userAgent, Delta: true})
	m.change(Put("b", Cluster("b", 2)))
	bad := sotw.View().Sets[ident.CDS].Find("b").Sum
	for _, c := range []struct {
		client      string
		sotw, delta int64
	}{
		{userAgent + " (state of the world)", 1, 2}, {userAgent + " (delta)", 2, 1},
	} {
		m.change(Quarantine("q", c.client, ident.CDS, "b", bad, Cluster("b", 1)))
		if diff := cmp.Diff(map[string]int64{"b": c.sotw}, timeouts(t, sotw.View())); diff != "" {
			t.Errorf("%s: state of the world (-want +got):\n%s", c.client, diff)
		}
		if diff := cmp.Diff(map[string]int64{"b": c.delta}, timeouts(t, delta.View())); diff != "" {
			t.Errorf("%s: delta (-want +got):\n%s", c.client, diff)
		}
	}
}
