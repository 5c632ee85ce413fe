package command_test

import (
	"fmt"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
)

// hosts returns a resource with virtual hosts of these names.
func hosts(t *testing.T, names ...string) *xds.Resource {
	m := &routev3.RouteConfiguration{Name: "80"}
	for _, name := range names {
		m.VirtualHosts = append(m.VirtualHosts, &routev3.VirtualHost{Name: name, Domains: []string{name}})
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &xds.Resource{Name: "80", Pieces: xds.PiecesOf(&xds.Encoded{Value: b})}
}

// Fields keep their places in lists, though equal elements at both ends are not printed.
func TestCompareResources(t *testing.T) {
	for _, tt := range []struct {
		was, is []string
		want    []string
	}{
		{[]string{"a", "b", "c", "d"}, []string{"a", "b", "x", "d"}, []string{"virtual_hosts[2].domains[0]", "virtual_hosts[2].name"}},
		{[]string{"a", "b", "d"}, []string{"a", "b", "c", "d"}, []string{"virtual_hosts[2]"}},
		{[]string{"a", "b"}, []string{"a"}, []string{"virtual_hosts[1]"}},
		{[]string{"b"}, []string{"a", "b"}, []string{"virtual_hosts[0]"}},
		{[]string{"a", "b", "c", "d"}, []string{"a", "d"}, []string{"virtual_hosts[1]", "virtual_hosts[2]"}},
		{nil, []string{"a"}, []string{"virtual_hosts"}},
		{[]string{"a", "b"}, []string{"a", "b"}, nil},
	} {
		c, _ := command.CompareResources(ident.RDS, hosts(t, tt.was...), hosts(t, tt.is...))
		var got []string
		for _, f := range c.Fields {
			got = append(got, f.Path)
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("from %v to %v: %v, want %v", tt.was, tt.is, got, tt.want)
		}
	}
}
