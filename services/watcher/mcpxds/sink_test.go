package mcpxds_test

import (
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/watcher/mcpxds"
)

// MCP-1, MCP-10: the source is asked once for each version of each kind, and is told once
// what this node is.
func TestMCP1Requests(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	r := watch(t, s, func(c *mcpxds.Config) { c.ID, c.Namespace, c.Revision = "watcher-1", "mesh", "canary" })
	if l := r.list(); len(l.Objects) != 0 || l.Partial || len(l.Kinds) != len(kind.Istio()) {
		t.Errorf("listed %+v", l)
	}
	first := s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool { return r.GetNode() != nil })
	if want := "sidecar~127.0.0.1~watcher-1.mesh~mesh.svc.cluster.local"; first.GetNode().GetId() != want {
		t.Errorf("the node is %q, want %q", first.GetNode().GetId(), want)
	}
	got := map[string]string{}
	for key, v := range first.GetNode().GetMetadata().GetFields() {
		got[key] = v.GetStringValue()
	}
	want := map[string]string{"GENERATOR": "api", "NAMESPACE": "mesh", "ISTIO_REVISION": "canary", "ISTIO_VERSION": "1.31.1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metadata of the node (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(allTypes(), s.Types()); diff != "" {
		t.Errorf("types that were asked for (-want +got):\n%s", diff)
	}
	s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool {
		if len(r.GetResourceNames()) > 0 || r != first && r.GetNode() != nil {
			t.Errorf("a request with names or a node: %v", r)
		}
		return r.GetVersionInfo() == "0" && r.GetResponseNonce() == mcptest.ServiceEntries+"#0" && r.GetErrorDetail() == nil // an ACK
	})
}

// ACL-2: without rules, the source may publish what it is asked for, and nothing else
// that it could be asked for.
func TestACL2Kinds(t *testing.T) {
	rules := permit.New(nil, "cluster.local", ident.Shard{})
	var got []string
	for _, k := range kind.Istio() {
		got = append(got, k.Name)
		if d := rules.Forbid(ident.Key{Source: mcpxds.Source, Instance: "a", Kind: k.Name, Namespace: "shop", Name: "a"}, nil); d != nil {
			t.Errorf("%s is forbidden: %s", k.Name, d.Reason)
		}
	}
	want := []string{
		"AuthorizationPolicy", "DestinationRule", "EnvoyFilter", "Gateway", "PeerAuthentication", "ProxyConfig", "RequestAuthentication",
		"ServiceEntry", "Sidecar", "Telemetry", "TrafficExtension", "VirtualService", "WasmPlugin", "WorkloadEntry", "WorkloadGroup",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds that are asked for (-want +got):\n%s", diff)
	}
}

// MCP-1: what the log has of an object.
func TestObject(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	created := timestamppb.New(timestamppb.Now().AsTime().Truncate(1e9))
	s.Set("security.istio.io/v1/AuthorizationPolicy", mcptest.Described(&mcp.Metadata{
		Name: "shop/a", Version: "17", CreateTime: created, Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"istio.io/dry-run": "true", "meshlog.dev/traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}, &security.AuthorizationPolicy{}))
	l := watch(t, s, nil).list()
	if len(l.Objects) != 1 {
		t.Fatalf("listed %s", names(l.Objects))
	}
	o := l.Objects[0]
	if o.Kind != "AuthorizationPolicy" || o.Namespace != "shop" || o.Name != "a" || o.SourceVersion != "17" || !o.Value.Created.Equal(created.AsTime()) ||
		o.Origin != "xds://"+s.Address()+" security.istio.io/v1/AuthorizationPolicy" || o.Observed.IsZero() || !strings.HasPrefix(o.Trace, "00-0af7") {
		t.Errorf("listed %+v", o)
	}
	if o.Value.Type != ident.DryRun { // AZ-8
		t.Errorf("the policy is a %s", o.Value.Type)
	}
}

// MCP-2: an answer is the whole set; what it lacks is gone, and what changes together is
// one change set.
func TestMCP2FullSets(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries("a", "b", "c")...)
	r := watch(t, s, nil)
	if l := r.list(); names(l.Objects) != "+a +b +c" || l.Partial {
		t.Fatalf("listed %+v", l)
	}
	changed := mcptest.Resource("shop/b", entry("changed.example.com"))
	s.Set(mcptest.ServiceEntries, append(entries("c", "d"), changed)...)
	if got := names(r.change()); got != "-a +b +d" {
		t.Errorf("changed %s", got)
	}
}

// MCP-2, REG-9: what a set suddenly lacks is removed when a second stream lacks it too.
// What it has counts meanwhile.
func TestMCP2SuddenlySmaller(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, nil)
	r.list()
	small := append(entries(numbered(5)...), entries("new")...)
	s.Set(mcptest.ServiceEntries, small...)
	if got := names(r.change()); got != "+new" {
		t.Errorf("changed %s", got)
	}
	if d := r.problem("doubted"); !strings.Contains(d.Reason, "ServiceEntry") || d.Advice == "" || d.Effect == "" {
		t.Errorf("reported %+v", d)
	}
	s.Set(mcptest.ServiceEntries, small...) // the same stream is no second read
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	r.run()
	if l := r.list(); len(l.Objects) != 6 || l.Partial {
		t.Errorf("listed %d objects, partial %t", len(l.Objects), l.Partial)
	}
	if n := s.Streams(); n != 2 {
		t.Errorf("%d streams", n)
	}
}

// REG-9: the loss of all objects of one kind is in doubt, however many there are of others.
func TestREG9ByKind(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(100)...)...)
	var rules []*anypb.Any
	for _, n := range numbered(7) {
		rules = append(rules, mcptest.Resource("shop/"+n, &networking.DestinationRule{Host: n}))
	}
	const url = "networking.istio.io/v1/DestinationRule"
	s.Set(url, rules...)
	r := watch(t, s, nil)
	r.list()
	s.Set(url)
	if d := r.problem("doubted"); !strings.Contains(d.Reason, "DestinationRule") {
		t.Errorf("reported %+v", d)
	}
}

// REG-9: the second read of one kind is a new connection for the others.
func TestREG9SecondReadOfOthers(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	const url = "networking.istio.io/v1/DestinationRule"
	var rules []*anypb.Any
	for _, n := range numbered(20) {
		rules = append(rules, mcptest.Resource("shop/"+n, &networking.DestinationRule{Host: n}))
	}
	s.Set(url, rules...)
	r := watch(t, s, nil)
	r.list()
	s.Set(mcptest.ServiceEntries)
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	s.Set(url)
	r.run()
	if l := r.list(); !l.Partial {
		t.Error("the loss of all DestinationRules is believed at once")
	}
}

// REG-9: a set that is whole again ends the doubt.
func TestMCP2WholeAgain(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, nil)
	r.list()
	s.Set(mcptest.ServiceEntries)
	r.problem("doubted")
	s.Set(mcptest.ServiceEntries, entries(numbered(19)...)...)
	if got := names(r.change()); got != "-n019" {
		t.Errorf("changed %s", got)
	}
}

// REG-9: after a new connection, a listing that lacks much is partial until a second one
// agrees.
func TestREG9BackEmpty(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, nil)
	r.list()
	s.Down()
	if err := r.ends(); err == nil {
		t.Fatal("the run ended without an error")
	}
	s.Set(mcptest.ServiceEntries)
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	r.run()
	if l := r.list(); !l.Partial || len(l.Objects) != 0 {
		t.Errorf("listed %+v", l)
	}
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	r.run()
	if l := r.list(); l.Partial || !slices.Contains(l.Kinds, "ServiceEntry") {
		t.Errorf("listed %+v", l)
	}
}

// REG-9: a partial listing is followed by a whole one as soon as the set is whole.
func TestREG9Filled(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, nil)
	r.list()
	s.Cut()
	s.Set(mcptest.ServiceEntries)
	if err := r.ends(); err == nil || !strings.Contains(err.Error(), s.Address()) {
		t.Fatalf("the run ended with %v", err)
	}
	r.run()
	if l := r.list(); !l.Partial {
		t.Errorf("listed %+v", l)
	}
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r.change()
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	r.run()
	if l := r.list(); l.Partial || len(l.Objects) != 20 {
		t.Errorf("listed %d objects, partial %t", len(l.Objects), l.Partial)
	}
}

// MCP-3: the listing does not speak for a kind that is never answered, and waits longer
// for a kind that is answered late.
func TestMCP3Silent(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Silent: func(url string) bool { return strings.HasSuffix(url, "/VirtualService") }})
	s.Set(mcptest.ServiceEntries, entries("a")...)
	r := watch(t, s, nil)
	l := r.list()
	if names(l.Objects) != "+a" || l.Partial || slices.Contains(l.Kinds, "VirtualService") || len(l.Kinds) != len(kind.Istio())-1 {
		t.Errorf("listed %+v", l)
	}
	if d := r.problem("unanswered"); !strings.Contains(d.Reason, "VirtualService") || d.Effect == "" {
		t.Errorf("reported %+v", d)
	}
	s.Set(typesOf("VirtualService")[0]) // a late answer
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
}

// MCP-3: a source that answers nothing is down.
func TestMCP3AllSilent(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Silent: func(string) bool { return true }})
	if err := watch(t, s, nil).ends(); err == nil || !strings.Contains(err.Error(), "answered for no type") {
		t.Errorf("the run ended with %v", err)
	}
}

// MCP-3: the MeshConfig is asked for if the watcher is told so, and never waited for. Its
// payload is the bare message.
func TestMCP3MeshConfig(t *testing.T) {
	const url = "core/v1alpha1/MeshConfig"
	s := mcptest.Start(t, mcptest.Options{Silent: func(u string) bool { return u == url }})
	r := watch(t, s, func(c *mcpxds.Config) { c.MeshConfig = true })
	if l := r.list(); len(l.Objects) != 0 || slices.Contains(l.Kinds, "MeshConfig") || len(l.Kinds) != len(kind.Istio()) {
		t.Errorf("listed %+v", l)
	}
	s.Set(url, mcptest.Bare(&mesh.MeshConfig{IngressService: "edge"}))
	set := r.change()
	if len(set) != 1 || set[0].Kind != "MeshConfig" || set[0].Namespace != "" || set[0].Name != "default" || !strings.HasSuffix(set[0].Value.Type, "istio.mesh.v1alpha1.MeshConfig") {
		t.Errorf("changed %+v", set)
	}
}

// MCP-4: an object that cannot be decoded keeps its last good value, the others apply, and
// the source is told which one is bad.
func TestMCP4Nack(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries("a", "b")...)
	r := watch(t, s, nil)
	r.list()
	bad := mcptest.Resource("shop/b", &security.PeerAuthentication{})
	s.Set(mcptest.ServiceEntries, append(entries("a", "c"), bad)...)
	set := r.change()
	if names(set) != "+b +c" {
		t.Fatalf("changed %s", names(set))
	}
	if _, reason := undecoded(t, set[0]); !strings.Contains(reason, "istio.security.v1beta1.PeerAuthentication") {
		t.Errorf("b is %+v", set[0])
	}
	nack := s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool { return r.GetErrorDetail() != nil })
	if nack.GetResponseNonce() != mcptest.ServiceEntries+"#2" || nack.GetVersionInfo() != "1" || !strings.Contains(nack.GetErrorDetail().GetMessage(), "shop/b: ") {
		t.Errorf("the NACK is %v", nack)
	}
	s.Set(mcptest.ServiceEntries, append(entries("a", "c", "d"), bad)...) // it is as bad as before
	if got := names(r.change()); got != "+d" {
		t.Errorf("changed %s", got)
	}
	s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool {
		return r.GetErrorDetail() != nil && r.GetResponseNonce() == mcptest.ServiceEntries+"#3" && r.GetVersionInfo() == "1"
	})
	s.Set(mcptest.ServiceEntries, entries("a", "b", "c", "d")...)
	if got := names(r.change()); got != "+b" {
		t.Errorf("changed %s", got)
	}
	s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool {
		return r.GetVersionInfo() == "4" && r.GetErrorDetail() == nil
	})
}

// MCP-4: while an object has no readable name, nothing of its kind is removed: it may be
// any.
func TestMCP4NoName(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries("a", "b")...)
	r := watch(t, s, nil)
	r.list()
	s.Set(mcptest.ServiceEntries, append(entries("a", "c"), mcptest.Resource("nameless", entry("b.example.com")))...)
	if got := names(r.change()); got != "+c" {
		t.Errorf("changed %s", got)
	}
	if d := r.problem("unreadable"); !strings.Contains(d.Reason, `"nameless"`) || !strings.Contains(d.Origin, mcptest.ServiceEntries) || d.Advice == "" || d.Effect == "" {
		t.Errorf("reported %+v", d)
	}
	s.Set(mcptest.ServiceEntries, entries("a", "c")...)
	if got := names(r.change()); got != "-b" {
		t.Errorf("changed %s", got)
	}
}

// MCP-4: a listing with an object without a readable name is partial, until it is gone.
func TestMCP4NoNameListed(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, append(entries("a"), mcptest.Resource("/a", entry("b.example.com")))...)
	r := watch(t, s, nil)
	if l := r.list(); !l.Partial || names(l.Objects) != "+a" {
		t.Errorf("listed %+v", l)
	}
	s.Set(mcptest.ServiceEntries, entries("a")...)
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	r.run()
	if l := r.list(); l.Partial {
		t.Errorf("listed %+v", l)
	}
}

// MCP-11: only content is a change.
func TestMCP11Content(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	resource := func(version string) *mcp.Metadata {
		return &mcp.Metadata{Name: "shop/a", Version: version, Annotations: map[string]string{"note": version}}
	}
	s.Set(mcptest.ServiceEntries, mcptest.Described(resource("1"), entry("a.example.com")))
	r := watch(t, s, nil)
	r.list()
	s.Set(mcptest.ServiceEntries, mcptest.Described(resource("2"), entry("a.example.com")))
	s.Set(mcptest.ServiceEntries, append(entries("b"), mcptest.Described(resource("3"), entry("a.example.com")))...)
	if got := names(r.change()); got != "+b" {
		t.Errorf("changed %s", got)
	}
}

// Objects of another revision are hidden, and their removal is one (REV-1).
func TestRevision(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	of := func(name, rev string) *mcp.Metadata {
		return &mcp.Metadata{Name: "shop/" + name, Labels: map[string]string{"istio.io/rev": rev}}
	}
	s.Set(mcptest.ServiceEntries, append(entries("a"), mcptest.Described(of("b", "canary"), entry("b.com")), mcptest.Described(of("c", "stable"), entry("c.com")))...)
	r := watch(t, s, func(c *mcpxds.Config) { c.Revision = "canary" })
	if l := r.list(); names(l.Objects) != "+a +b" {
		t.Fatalf("listed %s", names(l.Objects))
	}
	s.Set(mcptest.ServiceEntries, append(entries("a"), mcptest.Described(of("b", "stable"), entry("b.com")), mcptest.Described(of("c", "canary"), entry("c.com")))...)
	if got := names(r.change()); got != "-b +c" {
		t.Errorf("changed %s", got)
	}
}

// A type that was not asked for is reported, and changes nothing.
func TestForeignType(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	r := watch(t, s, nil)
	r.list()
	s.Unasked(mcptest.ServiceEntries, "networking.istio.io/v9/ServiceEntry", entries("a")...)
	if d := r.problem("foreign"); !strings.Contains(d.Reason, "v9/ServiceEntry") {
		t.Errorf("reported %+v", d)
	}
}

// Of two objects of one name in an answer, the first counts.
func TestTwice(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, append(entries("a"), mcptest.Resource("shop/a", entry("other.example.com")))...)
	r := watch(t, s, nil)
	if l := r.list(); names(l.Objects) != "+a" || !strings.Contains(string(l.Objects[0].Value.Bytes), "a.example.com") {
		t.Errorf("listed %+v", l)
	}
	if d := r.problem("twice"); !strings.Contains(d.Reason, "ServiceEntry shop/a") || d.Effect == "" {
		t.Errorf("reported %+v", d)
	}
}

// MCP-11: an answer may be larger than gRPC's default of 4 MiB.
func TestMCP11Large(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, mcptest.Resource("shop/a", entry(strings.Repeat("a", 5<<20))))
	if l := watch(t, s, nil).list(); len(l.Objects) != 1 || len(l.Objects[0].Value.Bytes) < 5<<20 {
		t.Errorf("listed %s", names(l.Objects))
	}
}
