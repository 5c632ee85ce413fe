package why_test

import (
	"errors"
	"slices"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/mesh/xds"
)

// An object that makes a resource, as why says, is used by it; one that a proxy does not see is
// not (WHY-12).
func TestUsed(t *testing.T) {
	w := meshtest.World(t, meshtest.YAML(t, mesh)...)
	proxies := []*proxy.Proxy{sidecar(t, "demo"), sidecar(t, "away"), client(t, "router~10.99.0.2~gw.edge~edge.svc.cluster.local")}
	pc := index.NewPushContext(w)
	catalog := xds.NewCatalog(pc)
	used := map[ident.Key][][ident.ResourceTypes][]string{}
	of := func(k ident.Key) [][ident.ResourceTypes][]string {
		if used[k] == nil {
			var err error
			if used[k], err = why.Used(w, k, proxies); err != nil {
				t.Fatalf("%s: %v", k, err)
			}
		}
		return used[k]
	}
	makers := 0
	for i, p := range proxies {
		class := index.Classify(pc, p)
		for _, rt := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} {
			for _, r := range catalog.Set(class.Only(rt), rt).Resources {
				a, err := why.Why(why.Question{World: w, Proxy: p, Type: rt, Resource: r.Name})
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range a.Objects {
					if makers++; !slices.Contains(of(o.Key)[i][rt], r.Name) {
						t.Errorf("%s made %s %s of %s, and is said to be used in %q only", o.Key, rt, r.Name, p.ID, of(o.Key)[i][rt])
					}
				}
			}
		}
	}
	if makers < 10 {
		t.Errorf("only %d makers were compared", makers)
	}
	other := ident.Key{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "demo", Name: "other"}
	if in := of(other); !slices.Contains(in[0][ident.CDS], "outbound|80||other.example") || len(in[1][ident.CDS]) > 0 {
		t.Errorf("a service of its namespace only is used by %q there and by %q elsewhere", in[0][ident.CDS], in[1][ident.CDS])
	}
	other.Name = "absent"
	if _, err := why.Used(w, other, proxies); !errors.Is(err, why.ErrNotServed) {
		t.Errorf("an object that there is not: %v", err)
	}
}
