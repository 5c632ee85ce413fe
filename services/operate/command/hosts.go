package command

import (
	"fmt"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/services/operate/past"
)

// hostsField begins the paths of virtual hosts.
const hostsField = "virtual_hosts["

// trimmed returns two route configurations without the virtual hosts at their beginnings and ends
// that are the same, and how many are left out at the beginning. A mesh of 10,000 services has as
// many virtual hosts, and printing all of them takes seconds. Other messages are returned whole.
func trimmed(a, b proto.Message) (proto.Message, proto.Message, int) {
	x, ok := a.(*routev3.RouteConfiguration)
	y, both := b.(*routev3.RouteConfiguration)
	if !ok || !both {
		return a, b, 0
	}
	was, is := x.GetVirtualHosts(), y.GetVirtualHosts()
	first, endA, endB := 0, len(was), len(is)
	for first < min(endA, endB) && proto.Equal(was[first], is[first]) {
		first++
	}
	for min(endA, endB) > first && proto.Equal(was[endA-1], is[endB-1]) {
		endA, endB = endA-1, endB-1
	}
	if first == min(endA, endB) { // a list that is empty is not printed
		switch {
		case first > 0:
			first--
		case endA < len(was):
			endA, endB = endA+1, endB+1
		}
	}
	return withHosts(x, was[first:endA]), withHosts(y, is[first:endB]), first
}

// withHosts returns a shallow copy of a route configuration with other virtual hosts.
func withHosts(m *routev3.RouteConfiguration, hosts []*routev3.VirtualHost) *routev3.RouteConfiguration {
	c := &routev3.RouteConfiguration{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "virtual_hosts" {
			c.ProtoReflect().Set(f, v)
		}
		return true
	})
	c.VirtualHosts = hosts
	return c
}

// shifted corrects the paths of virtual hosts of which the first ones were left out.
func shifted(fields []past.FieldChange, by int) {
	for i := range fields {
		rest, of := strings.CutPrefix(fields[i].Path, hostsField)
		number, rest, found := strings.Cut(rest, "]")
		if n, err := strconv.Atoi(number); of && found && err == nil {
			fields[i].Path = fmt.Sprintf("%s%d]%s", hostsField, n+by, rest)
		}
	}
}
