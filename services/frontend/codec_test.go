package frontend

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
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
			t.Errorf("decoded node: %v, want one: %v", got.node, wantNode)
		}
	}
}

// A request without its node is what it was otherwise.
func TestDropNode(t *testing.T) {
	sent := &discoveryv3.DiscoveryRequest{
		VersionInfo: "v", Node: &corev3.Node{Id: "n", Cluster: "cluster"}, ResourceNames: []string{"a", "b"}, TypeUrl: "t", ResponseNonce: "7",
	}
	b, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	for _, wantNode := range []bool{true, false} {
		got := request{wantNode: wantNode}
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &got); err != nil {
			t.Fatal(err)
		}
		want, size := got.Request, len(b)
		if wantNode {
			size -= 2 + proto.Size(sent.GetNode())
		}
		if kept := got.dropNode(); kept != size || got.malformed != nil {
			t.Errorf("the request keeps %d bytes, want %d; %v", kept, size, got.malformed)
		}
		if diff := cmp.Diff(want, got.Request, cmp.Transformer("names", list), cmp.Transformer("versions", pairs)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
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
		if len(b) > maxClientText || got.runs > maxRuns {
			return // a text may be cut, a name too long
		}
		if valid && (err != nil || got.TypeURL != want.GetTypeUrl() || got.Version != want.GetVersionInfo() ||
			got.Nonce != want.GetResponseNonce() || got.Names.Len() != len(want.GetResourceNames())) {
			t.Errorf("%v, %+v; want %v", err, got, &want)
		}
	})
}

func TestEncodeResponse(t *testing.T) {
	r := &response{stream.Response{
		Type: ident.EDS, Version: "v", Nonce: "7", Resources: []*xds.Resource{xds.Empty(ident.EDS, "a"), xds.Empty(ident.EDS, "b")},
		Memo: new(names.Memo),
	}, "f1", ""}
	buffers, err := codec{}.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(buffers.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.GetResources()) != 2 || got.GetResources()[1].GetTypeUrl() != ident.EDS.URL() {
		t.Errorf("resources %v", got.GetResources())
	}
	got.Resources = nil
	want := &discoveryv3.DiscoveryResponse{
		VersionInfo: "v", TypeUrl: ident.EDS.URL(), Nonce: "7", ControlPlane: &corev3.ControlPlane{Identifier: "f1"},
	}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDecodeDeltaRequest(t *testing.T) {
	sent := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "n"}, ResourceNamesSubscribe: []string{"a", "b"}, ResourceNamesUnsubscribe: []string{"c"},
		TypeUrl: ident.CDS.URL(), ResponseNonce: "7", InitialResourceVersions: map[string]string{"a": "1", "b": "2"},
		ErrorDetail: &statusv1.Status{Code: 13, Message: "bad"},
	}
	b, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	got := request{delta: true}
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &got); err != nil || got.malformed != nil {
		t.Fatal(err, got.malformed)
	}
	want := stream.Request{
		TypeURL: ident.CDS.URL(), Nonce: "7", Names: names.Of("a", "b"), Unsubscribe: names.Of("c"),
		Initial: names.Versions{}.With("a", "1").With("b", "2"), Rejected: true, Error: "bad",
	}
	if diff := cmp.Diff(want, got.Request, cmp.Transformer("names", list), cmp.Transformer("versions", pairs)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got.free()
	if got.TypeURL != "" || !got.delta {
		t.Errorf("after free: %+v", got)
	}
}

func TestEncodeDeltaResponse(t *testing.T) {
	r := &response{stream.Response{
		Type: ident.CDS, Delta: true, Version: "v", Nonce: "7", Removed: []string{"x", "y"},
		Resources: []*xds.Resource{xds.Empty(ident.EDS, "a")},
	}, "f1", ""}
	buffers, err := codec{}.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(buffers.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	one := got.GetResources()[0]
	if one.GetName() != "a" || one.GetVersion() != xds.Absent("a").String() || one.GetResource().GetTypeUrl() != ident.EDS.URL() {
		t.Errorf("resource %v", one)
	}
	got.Resources = nil
	want := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "v", TypeUrl: ident.CDS.URL(), Nonce: "7", RemovedResources: []string{"x", "y"},
		ControlPlane: &corev3.ControlPlane{Identifier: "f1"},
	}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A label precedes each version of a response, and no other byte differs (SRV-1).
func TestLabel(t *testing.T) {
	for _, delta := range []bool{false, true} {
		plain := stream.Response{
			Type: ident.CDS, Delta: delta, Version: "v", Nonce: "7",
			Resources: []*xds.Resource{xds.Empty(ident.EDS, "a"), xds.Empty(ident.EDS, strings.Repeat("b", 120))},
		}
		decode := func(r *response) (m proto.Message) {
			if m = new(discoveryv3.DiscoveryResponse); delta {
				m = new(discoveryv3.DeltaDiscoveryResponse)
			}
			buffers, err := codec{}.Marshal(r)
			if err == nil {
				err = proto.Unmarshal(buffers.Materialize(), m)
			}
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		want, got := decode(&response{Response: plain}), decode(&response{Response: plain, label: "past:7.12-"})
		switch m := want.(type) {
		case *discoveryv3.DiscoveryResponse:
			m.VersionInfo = "past:7.12-v"
		case *discoveryv3.DeltaDiscoveryResponse:
			m.SystemVersionInfo = "past:7.12-v"
			for _, r := range m.GetResources() {
				r.Version = "past:7.12-" + r.GetVersion()
			}
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("delta=%v -want +got:\n%s", delta, diff)
		}
	}
}

// TestSharedBuffers checks that responses with the same resources share all bytes
// except their heads.
func TestSharedBuffers(t *testing.T) {
	shared := stream.Response{
		Type: ident.EDS, Nonce: "1", Resources: []*xds.Resource{xds.Empty(ident.EDS, "a")}, Memo: new(names.Memo),
	}
	first, err := codec{}.Marshal(&response{Response: shared})
	if err != nil {
		t.Fatal(err)
	}
	shared.Nonce = "2"
	second, err := codec{}.Marshal(&response{Response: shared})
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != len(second) || &first[1].ReadOnlyData()[0] != &second[1].ReadOnlyData()[0] {
		t.Error("the bytes of resources are not shared")
	}
	if string(first[0].ReadOnlyData()) == string(second[0].ReadOnlyData()) {
		t.Error("the heads are the same")
	}
}

// BenchmarkAckEDS1001Names decodes and handles an ACK that repeats all names,
// 60 KB, as an Envoy ACK does (E28).
func BenchmarkAckEDS1001Names(b *testing.B) {
	set := &xds.Set{}
	sent := &discoveryv3.DiscoveryRequest{TypeUrl: ident.EDS.URL(), Node: &corev3.Node{Id: string(make([]byte, 61<<10))}}
	for i := range 1001 {
		name := fmt.Sprintf("outbound|8080||service-%04d.default.svc.cluster.local", i)
		sent.ResourceNames = append(sent.ResourceNames, name)
		set.Resources = append(set.Resources, xds.Empty(ident.EDS, name))
	}
	v := content.View{}
	for t := range ident.ResourceTypes {
		v.Sets[t] = set
	}
	s := stream.New(stream.Config{}, v)
	encode := func(version, nonce string) mem.BufferSlice {
		sent.VersionInfo, sent.ResponseNonce = version, nonce
		bytes, err := proto.Marshal(sent)
		if err != nil {
			b.Fatal(err)
		}
		return mem.BufferSlice{mem.SliceBuffer(bytes)}
	}
	var r request
	take := func(m mem.BufferSlice) {
		if err := (codec{}).Unmarshal(m, &r); err != nil {
			b.Fatal(err)
		}
		if err := s.Request(time.Unix(1, 0), r.Request); err != nil {
			return
		}
		r.free()
	}
	take(encode("", ""))
	first, _ := s.Next(time.Unix(1, 0))
	again := encode(first.Version, first.Nonce)
	b.ReportAllocs()
	for b.Loop() {
		take(again)
	}
}
