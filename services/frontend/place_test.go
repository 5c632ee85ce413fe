package frontend

import (
	"fmt"
	"net"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/address"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
)

// Proxies of one address are one rejector, whatever ids they give; so are those of
// one IPv6 network (XDS-5).
func TestRejectorsByPlace(t *testing.T) {
	from := func(id, at string) rejector {
		a, err := net.ResolveTCPAddr("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		c := &conn{proxy: &proxy.Proxy{ID: id}, place: place{address: address.Of(a)}}
		return rejector{c, index.ProxyClass{}, stream.Rejection{}}
	}
	all := &tally{Rejected: ident.Rejected{Name: "b"}, rejectors: []rejector{
		from("p1", "10.0.0.1:1"), from("p2", "10.0.0.1:2"), from("p3", "10.0.0.2:1"), from("p4", "[2001:db8::1]:1"), from("p5", "[2001:db8::2]:1"), from("p6", "[::ffff:10.0.0.2]:5"),
	}}
	var got []string
	for _, r := range all.rejectorsOf() {
		got = append(got, r.GetProxy()+" "+r.GetAddress())
	}
	want := []string{"p1 10.0.0.1", "p3 10.0.0.2", "p4 2001:db8::/64"}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("rejectors %v, want %v", got, want)
	}
	for i := range 100 {
		all.rejectors = append(all.rejectors, from("x", net.IPv4(10, 1, 0, byte(i)).String()+":1"))
	}
	if n := len(all.rejectorsOf()); n != maxRejectors {
		t.Errorf("%d rejectors are reported, want %d", n, maxRejectors)
	}
}

// A client that rejects many resources under many names does not keep the rejections
// of others out of the report (XDS-5).
func TestVerdictsInTurns(t *testing.T) {
	rejects := func(name, client, address string) rejector {
		c := &conn{proxy: &proxy.Proxy{ID: client, UserAgent: client}, place: place{address: address}}
		return rejector{c, index.ProxyClass{}, stream.Rejection{Type: ident.CDS, Name: name}}
	}
	var all []rejector
	for i := range 2 * maxVerdicts {
		all = append(all, rejects("a", fmt.Sprintf("invented %03d", i), "10.0.0.1"))
	}
	all = append(all, rejects("z", "envoy 1.40.0", "10.0.0.2"), rejects("z", "envoy 1.40.0", "10.0.0.3"))
	s := &Server{suspects: []ident.Rejected{{Type: ident.EDS.URL(), Name: "asked"}}}
	got := s.verdictReports(nil, all)
	names := map[string]int{}
	for _, v := range got {
		names[v.GetName()]++
	}
	if len(got) != maxVerdicts || names["z"] != 1 || names["asked"] != 1 {
		t.Errorf("%d verdicts, by name %v", len(got), names)
	}
}
