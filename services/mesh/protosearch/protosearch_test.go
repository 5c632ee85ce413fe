package protosearch_test

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/protosearch"
)

func searchFor(names ...protoreflect.FullName) *protosearch.Search {
	return protosearch.For(func(d protoreflect.MessageDescriptor) bool { return slices.Contains(names, d.FullName()) })
}

func TestFieldsThatLeadToAType(t *testing.T) {
	durations := searchFor("google.protobuf.Duration")
	for _, test := range []struct {
		of   proto.Message
		want []protoreflect.Name
	}{
		{&endpointv3.LbEndpoint{}, []protoreflect.Name{"metadata"}}, // may contain an Any
		{&corev3.Address{}, nil},                                    // deep, but has no Duration
		{&structpb.Struct{}, nil},                                   // recursive
		{&routev3.RetryPolicy_RetryBackOff{}, []protoreflect.Name{"base_interval", "max_interval"}},
	} {
		d := test.of.ProtoReflect().Descriptor()
		for range 2 { // the second search uses the result of the first
			var got []protoreflect.Name
			for _, fd := range durations.Fields(d) {
				got = append(got, fd.Name())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: fields %q lead to a Duration, want %q", d.FullName(), got, test.want)
			}
		}
	}
	if len(searchFor("google.protobuf.Value").Fields((&structpb.Struct{}).ProtoReflect().Descriptor())) != 1 {
		t.Error("the search does not find the values of a Struct")
	}
}

func TestEachVisitsFieldsListsAndMaps(t *testing.T) {
	m := &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Name: "a"}, {Name: "b"}}}
	var names []string
	searchFor("envoy.config.route.v3.VirtualHost").Each(m.ProtoReflect(), func(m protoreflect.Message) {
		names = append(names, m.Interface().(*routev3.VirtualHost).GetName())
	})
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("visited %q", names)
	}
	c := &clusterv3.Cluster{Name: "c", Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"k": {}}}}
	visited := 0
	searchFor("google.protobuf.Struct").Each(c.GetMetadata().ProtoReflect(), func(m protoreflect.Message) {
		visited++
		if s := m.Interface().(*structpb.Struct); s != c.GetMetadata().GetFilterMetadata()["k"] {
			t.Errorf("visited %v, want the value of k", s)
		}
	})
	if visited != 1 {
		t.Errorf("visited %d values of the map, want 1", visited)
	}
}
