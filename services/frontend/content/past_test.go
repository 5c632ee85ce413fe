package content

import (
	"iter"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// A client begins to read its past, and continues after newer versions were served.
// The sets that the cache makes for it are never used as the content of another
// version, whenever another client of that class joins.
func TestPastOfSlowClient(t *testing.T) {
	for _, c := range []struct {
		name            string
		joinFirst, stay bool
	}{
		{"joins after", false, false},
		{"joins before", true, false},
		{"another client of its class stays", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh(t, Put("a", Cluster("a", 1)))
			served := map[ident.Position]*index.PushContext{}
			change := func(changes ...Change) {
				served[ident.Position{Epoch: 1, Seq: m.seq}] = m.pc
				m.change(changes...)
			}
			if c.stay {
				m.join("m")
			}
			change(PutFor("n", Group("n"), Cluster("n", 1))) // 1.2: from here on, n is of another class than m
			slow := m.join("n")
			change(Put("a", Cluster("a", 2)))
			next, stop := iter.Pull(slow.Past())
			defer stop()
			if v, _ := next(); v.Version.Seq != 2 {
				t.Fatalf("the slow client's past begins at %s", v.Version)
			}
			change(Put("a", Cluster("a", 3)))
			change(Put("a", Cluster("a", 4)))
			var late *listener
			if c.joinFirst {
				late = m.join("m")
			}
			if v, _ := next(); v.Version.Seq != 1 { // made now, for m's class
				t.Fatalf("the slow client's past continues at %s", v.Version)
			}
			if late == nil {
				late = m.join("m")
			}
			for range 2 { // the first time, the cache makes the sets; then it has them
				seen := 0
				for v := range late.Past() {
					pc := served[v.Version]
					class := index.Classify(pc, &proxy.Proxy{ID: "m", Cluster: "m"}).Only(ident.CDS)
					if want := xds.NewCatalog(pc).Set(class, ident.CDS).Sum; v.Sets[ident.CDS].Sum != want {
						t.Errorf("at %s: the past differs from the served content", v.Version)
					}
					seen++
				}
				if seen != 4 {
					t.Errorf("the past has %d versions, want 4", seen)
				}
			}
		})
	}
}
