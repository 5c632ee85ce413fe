package frontend

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
)

func TestDecodeRequest(t *testing.T) {
	sent := &discoveryv3.DiscoveryRequest{
		VersionInfo: "v", Node: &corev3.Node{Id: "n"}, ResourceNames: []string{"a", "b"}, TypeUrl: "t", ResponseNonce: "7",
		ErrorDetail: &statusv1.Status{Code: 13, Message: "bad"},
	}
	b, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	want := stream.Request{TypeURL: "t", Version: "v", Nonce: "7", Names: names.Of("a", "b"), Rejected: true, Error: "bad"}
	for _, wantNode := range []bool{true, false} {
		got := request{wantNode: wantNode}
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Request, cmp.Transformer("names", list), cmp.Transformer("versions", pairs)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if (got.node != nil) != wantNode {
			t.Errorf("node %v where it is wanted: %v", got.node, wantNode)
		}
	}
}

func list(w names.Wire) []string {
	var all []string
	for n := range w.All() {
		all = append(all, string(n))
	}
	return all
}

func pairs(v names.Versions) map[string]string {
	all := map[string]string{}
	for name, version := range v.All() {
		all[string(name)] = string(version)
	}
	return all
}

func FuzzDecodeRequest(f *testing.F) {
	b, err := proto.Marshal(&discoveryv3.DiscoveryRequest{VersionInfo: "v", TypeUrl: "t", ErrorDetail: &statusv1.Status{Message: "m"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var want discoveryv3.DiscoveryRequest
		valid := proto.Unmarshal(b, &want) == nil
		var got request
		err := got.decode(b)
		if valid && (err != nil || got.TypeURL != want.GetTypeUrl() || got.Version != want.GetVersionInfo() ||
			got.Nonce != want.GetResponseNonce() || got.Names.Len() != len(want.GetResourceNames())) {
			t.Errorf("%v, %+v; want %v", err, got, &want)
		}
	})
}

func TestEncodeResponse(t *testing.T) {
	r := &response{stream.Response{
		Type: model.EDS, Version: "v", Nonce: "7", Resources: []*xds.Resource{xds.Empty(model.EDS, "a"), xds.Empty(model.EDS, "b")},
		Memo: new(names.Memo),
	}, "f1"}
	buffers, err := codec{}.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(buffers.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.GetResources()) != 2 || got.GetResources()[1].GetTypeUrl() != model.EDS.URL() {
		t.Errorf("resources %v", got.GetResources())
	}
	got.Resources = nil
	want := &discoveryv3.DiscoveryResponse{
		VersionInfo: "v", TypeUrl: model.EDS.URL(), Nonce: "7", ControlPlane: &corev3.ControlPlane{Identifier: "f1"},
	}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
