package frontend

import (
	"testing"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// Proxies of one release that got changes at different times have different
// contents before; the newest one is reported, with a class that had it (PRO-7).
func TestNewestGood(t *testing.T) {
	has := func(id string, sum byte, seq uint64, class index.ProxyClass) rejector {
		var good *xds.Resource
		if sum > 0 {
			good = &xds.Resource{Sum: xds.Sum{sum}}
		}
		return rejector{&conn{proxy: &proxy.Proxy{ID: id}}, class, stream.Rejection{Good: good, World: ident.Position{Epoch: 5, Seq: seq}}}
	}
	own := index.ProxyClass{RDS: index.RDSClass{Namespace: "own"}}
	all := &tally{t: ident.RDS, verdict: &reportv1.Verdict{}, rejectors: []rejector{
		has("p1", 0, 9, index.ProxyClass{}), has("p2", 1, 6, index.ProxyClass{}), has("p3", 2, 7, own), has("p4", 1, 6, index.ProxyClass{}),
	}}
	all.explain()
	v := all.verdict
	class, err := index.DecodeClass(v.GetClass())
	if err != nil || class.RDS.Namespace != "own" || len(v.GetGoodSum()) != 16 || v.GetGoodSum()[0] != 2 || v.GetGood().GetSeq() != 7 {
		t.Errorf("verdict %v, class %v, %v", v, class, err)
	}
}
