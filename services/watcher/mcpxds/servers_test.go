package mcpxds_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/mcpxds"
)

// NAC-2, TST-7: Nacos answers with an empty set until its first naming event, and with
// ServiceEntries in v1alpha3 only, whose port is 0.
func TestNacos(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Silent: func(url string) bool { return strings.HasSuffix(url, "MeshConfig") }})
	r := watch(t, s, nil)
	if l := r.list(); len(l.Objects) != 0 || l.Partial || len(l.Kinds) != len(kind.Istio()) {
		t.Errorf("listed %+v", l)
	}
	service := &networking.ServiceEntry{
		Hosts: []string{"a.DEFAULT-GROUP.publicnacos"}, Resolution: networking.ServiceEntry_STATIC, Location: networking.ServiceEntry_MESH_INTERNAL,
		Ports:     []*networking.ServicePort{{Number: 0, Name: "http", Protocol: "http"}},
		Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1", Ports: map[string]uint32{"http": 8080}}},
	}
	s.Set(alpha, mcptest.Resource("public/a.DEFAULT-GROUP.public", service))
	set := r.change()
	if len(set) != 1 || set[0].Namespace != "public" {
		t.Fatalf("changed %+v", set)
	}
	field, reason := undecoded(t, set[0])
	if field != "spec.ports[0].number" || !strings.Contains(reason, "is 0") || !strings.Contains(reason, "native watcher for Nacos") {
		t.Errorf("the entry is bad in %q: %q", field, reason)
	}
}

// TST-7: Higress names no versions, and sends fields that Istio does not have. They are
// left out, with a warning (MCP-1); content decides what has changed (MCP-11).
func TestHigress(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Unversioned: true})
	route := func(host string) *networking.VirtualService {
		v := &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a.example.com"}}},
		}}}
		v.GetHttp()[0].ProtoReflect().SetUnknown(unknownField(100))
		return v
	}
	const url = "networking.istio.io/v1/VirtualService"
	s.Set(url, mcptest.Resource("higress-system/a", route("a.example.com")), mcptest.Resource("higress-system/b", route("b.example.com")))
	r := watch(t, s, nil)
	l := r.list()
	if names(l.Objects) != "+a +b" {
		t.Fatalf("listed %s", names(l.Objects))
	}
	k, _ := kind.ByName("VirtualService")
	m, err := k.Decode(l.Objects[0].Value.Type, l.Objects[0].Value.Bytes)
	if err != nil || len(m.(*networking.VirtualService).GetHttp()[0].ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("published %v: %v", m, err)
	}
	if d := r.problem("unknown-field"); d.Field != "http.100" || !strings.Contains(d.Reason, "VirtualService higress-system/a and 1 others") {
		t.Errorf("reported %+v", d)
	}
	s.Set(url, mcptest.Resource("higress-system/a", route("a.example.com")), mcptest.Resource("higress-system/b", route("changed.example.com")))
	if got := names(r.change()); got != "+b" {
		t.Errorf("changed %s", got)
	}
}

// A policy with a field that this build does not know is not taken in part: it could allow
// more. What it selects can be read, so it fails closed there (POL-15).
func TestUnknownFieldOfPolicy(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	p := &security.AuthorizationPolicy{Rules: []*security.Rule{{}}}
	p.GetRules()[0].ProtoReflect().SetUnknown(unknownField(77))
	s.Set("security.istio.io/v1/AuthorizationPolicy", mcptest.Resource("shop/a", p))
	l := watch(t, s, nil).list()
	if len(l.Objects) != 1 {
		t.Fatalf("listed %s", names(l.Objects))
	}
	if field, reason := undecoded(t, l.Objects[0]); field != "rules.77" || !strings.Contains(reason, "does not know") {
		t.Errorf("the policy is bad in %q: %q", field, reason)
	}
}

// TST-7: slime sends what has changed only, and deletes by an empty body (MCP-2).
func TestSlime(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, func(c *mcpxds.Config) { c.Incremental = true })
	r.list()
	s.Push(mcptest.ServiceEntries, entries("new")...)
	if got := names(r.change()); got != "+new" {
		t.Errorf("changed %s", got)
	}
	s.Push(mcptest.ServiceEntries, mcptest.Resource("shop/n000", nil), mcptest.Resource("shop/new", entry("changed.example.com")))
	if got := names(r.change()); got != "-n000 +new" {
		t.Errorf("changed %s", got)
	}
}

// MCP-2: without the setting, an object without a body is an error, and the change of a
// part looks like the loss of the rest, which is in doubt.
func TestSlimeUnasked(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(mcptest.ServiceEntries, entries(numbered(20)...)...)
	r := watch(t, s, nil)
	r.list()
	s.Push(mcptest.ServiceEntries, mcptest.Resource("shop/n000", nil))
	set := r.change()
	if names(set) != "+n000" {
		t.Fatalf("changed %s", names(set))
	}
	if _, reason := undecoded(t, set[0]); !strings.Contains(reason, "--mcp-incremental") {
		t.Errorf("n000 is %+v: %q", set[0], reason)
	}
	r.problem("doubted")
}

// MCP-10, TST-7: istiod answers a version that it does not store with an empty set, today
// all but v1, before 1.24 all but v1alpha3.
func TestIstiod(t *testing.T) {
	for name, url := range map[string]string{"now": mcptest.ServiceEntries, "before 1.24": alpha} {
		t.Run(name, func(t *testing.T) {
			s := mcptest.Start(t, mcptest.Options{})
			s.Set(url, entries("a", "b")...)
			r := watch(t, s, nil)
			if l := r.list(); names(l.Objects) != "+a +b" || l.Partial {
				t.Errorf("listed %+v", l)
			}
			s.Set(url, entries("b")...)
			if got := names(r.change()); got != "-a" {
				t.Errorf("changed %s", got)
			}
		})
	}
}

// MCP-10: of one name, the newest version counts. If it goes, a new stream brings the
// older one.
func TestMCP10Newest(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	s.Set(alpha, append(entries("b"), mcptest.Resource("shop/a", entry("old.example.com")))...)
	s.Set(mcptest.ServiceEntries, entries("a")...)
	r := watch(t, s, nil)
	l := r.list()
	k, _ := kind.ByName("ServiceEntry")
	if names(l.Objects) != "+a +b" {
		t.Fatalf("listed %s", names(l.Objects))
	}
	if m, err := k.Decode(l.Objects[0].Value.Type, l.Objects[0].Value.Bytes); err != nil || m.(*networking.ServiceEntry).GetHosts()[0] != "a.example.com" {
		t.Errorf("a is %v: %v", m, err)
	}
	s.Set(alpha, append(entries("b", "c"), mcptest.Resource("shop/a", entry("older.example.com")))...)
	if got := names(r.change()); got != "+c" {
		t.Errorf("changed %s", got)
	}
	s.Set(mcptest.ServiceEntries)
	if err := r.ends(); err != nil {
		t.Fatal(err)
	}
	r.run()
	l = r.list()
	if m, err := k.Decode(l.Objects[0].Value.Type, l.Objects[0].Value.Bytes); err != nil || m.(*networking.ServiceEntry).GetHosts()[0] != "older.example.com" {
		t.Errorf("a is %v: %v", m, err)
	}
}

// MCP-10: a kind is listed when the source has been quiet after one of its versions.
func TestMCP10OneVersion(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Silent: func(url string) bool {
		return !strings.Contains(url, "/v1/") && !slices.Contains([]string{"EnvoyFilter", "ProxyConfig", "WasmPlugin", "TrafficExtension"}, url[strings.LastIndex(url, "/")+1:])
	}})
	s.Set(mcptest.ServiceEntries, entries("a")...)
	r := watch(t, s, nil)
	if l := r.list(); names(l.Objects) != "+a" || l.Partial || len(l.Kinds) != len(kind.Istio()) {
		t.Errorf("listed %+v", l)
	}
}

// MCP-10: the listing waits for the other versions of a kind.
func TestMCP10Late(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{Silent: func(url string) bool { return url == alpha }})
	s.Set(mcptest.ServiceEntries, entries("a")...)
	r := start(t, s, mcpxds.New(mcpxds.Config{Address: s.Address()}).Hasten(time.Minute, time.Minute, doubtFor))
	s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool { // an answer was taken
		return r.GetTypeUrl() == mcptest.ServiceEntries && r.GetResponseNonce() != ""
	})
	s.Set(alpha, entries("b")...)
	if l := r.list(); names(l.Objects) != "+a +b" || l.Partial {
		t.Errorf("listed %+v", l)
	}
}

// A source may call a message by another version of its package.
func TestOtherPackage(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	body := mcptest.Bare(entry("a.example.com"))
	body.TypeUrl = "type.googleapis.com/istio.networking.v1beta1.ServiceEntry"
	s.Set(mcptest.ServiceEntries, mcptest.Bare(&mcp.Resource{Metadata: &mcp.Metadata{Name: "shop/a"}, Body: body}))
	l := watch(t, s, nil).list()
	if len(l.Objects) != 1 || l.Objects[0].Value.Type != "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry" {
		t.Errorf("listed %+v", l)
	}
}

// unknownField returns a field with a number that messages do not have.
func unknownField(number protowire.Number) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
}
