package mcp_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/frontend/mcp"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
)

const (
	entries  = "networking.istio.io/v1/ServiceEntry"
	routes   = "networking.istio.io/v1/VirtualService"
	policies = "security.istio.io/v1/AuthorizationPolicy"
)

var at = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// served is a catalog and the version that it serves.
type served struct {
	t       *testing.T
	catalog *mcp.Catalog
	world   *world.World
	index   *index.PushContext
	seq     uint64
}

func serve(t *testing.T, changes ...meshtest.Change) *served {
	t.Helper()
	s := &served{t: t, catalog: mcp.NewCatalog(), world: world.NewWorld()}
	s.index = index.NewPushContext(s.world)
	s.apply(changes...)
	return s
}

func (s *served) apply(changes ...meshtest.Change) {
	s.t.Helper()
	next, keys, err := s.world.Apply(meshtest.Rows(changes...))
	if err != nil {
		s.t.Fatal(err)
	}
	pc, inputs := s.index.Next(next, keys)
	s.seq++
	s.world, s.index = next, pc
	s.catalog.Update(ident.Position{Epoch: 1, Seq: s.seq}, next, pc, inputs)
}

// client is a sink that ACKs what it gets.
type client struct {
	t      *testing.T
	stream *mcp.Stream
}

func (s *served) connect(namespace, revision string, types ...string) *client {
	s.t.Helper()
	c := &client{s.t, mcp.NewStream(s.catalog, namespace, revision, "n-")}
	for _, url := range types {
		c.request(mcp.Request{Type: url, Nonce: "2026-11-27 12:00:00"}) // as istiod
	}
	return c
}

func (c *client) request(r mcp.Request) *mcp.Answer {
	c.t.Helper()
	answer, err := c.stream.Request(at, r)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer
}

// next returns the next response; nil: none is due.
func (c *client) next() *mcp.Response {
	c.t.Helper()
	r, err := c.stream.Next(at)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *client) ack(r *mcp.Response) {
	c.t.Helper()
	if a := c.request(mcp.Request{Type: r.Type, Nonce: r.Nonce}); a == nil || a.Rejected {
		c.t.Fatalf("the ACK of %s counts as %+v", r.Type, a)
	}
}

// all ACKs all that is due, and returns what it was sent, by type.
func (c *client) all() map[string][]*mcpv1.Resource {
	c.t.Helper()
	got := map[string][]*mcpv1.Resource{}
	for r := c.next(); r != nil; r = c.next() {
		got[r.Type] = decode(c.t, r)
		c.ack(r)
	}
	return got
}

func decode(t *testing.T, r *mcp.Response) []*mcpv1.Resource {
	t.Helper()
	var m discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(slices.Concat(r.Set.Slices...), &m); err != nil {
		t.Fatal(err)
	}
	all := make([]*mcpv1.Resource, 0, len(m.GetResources()))
	for _, a := range m.GetResources() {
		one := &mcpv1.Resource{}
		if err := a.UnmarshalTo(one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

func names(all []*mcpv1.Resource) string {
	var list []string
	for _, r := range all {
		list = append(list, r.GetMetadata().GetName())
	}
	return strings.Join(list, " ")
}

func body[M proto.Message](t *testing.T, r *mcpv1.Resource, m M) M {
	t.Helper()
	if err := r.GetBody().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// policy is a MeshPolicy with sinks; without any, each client gets everything.
func policy(sinks ...*configv1.McpSink) meshtest.Change {
	if len(sinks) == 0 {
		sinks = []*configv1.McpSink{{}}
	}
	return meshtest.Object("MeshPolicy", "", "default", &configv1.MeshPolicy{Mcp: &configv1.Mcp{Sinks: sinks}})
}

func entry(hosts ...string) *networking.ServiceEntry {
	return &networking.ServiceEntry{
		Hosts: hosts, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1"}},
	}
}

func route(host string) meshtest.Change {
	return meshtest.Object("VirtualService", "shop", "web", &networking.VirtualService{Hosts: []string{host}})
}

// web is a service of Consul with instances on ports of their own: IP:PORT, or !IP:PORT for one
// that is not healthy.
func web(labels map[string]string, instances ...*registryv1.Endpoint) []meshtest.Change {
	return []meshtest.Change{
		meshtest.Object("Service", "consul", "web", &registryv1.Service{
			Hostname: "web.service.consul", Labels: labels,
			Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}, {Number: 90, Name: "grpc"}},
		}).From("consul").In("dc1"),
		meshtest.Object("EndpointSlice", "consul", "web#", &registryv1.Endpoints{
			Service: "web", Endpoints: instances,
		}).From("consul").In("dc1"),
	}
}

func at80(ip string, port uint32) *registryv1.Endpoint {
	return &registryv1.Endpoint{Addresses: []string{ip}, Ports: map[string]uint32{"http": port, "grpc": port + 1}}
}

// MCP-15: a service of Consul is a ServiceEntry with its healthy instances at their own ports.
// Services of Kubernetes, which an istiod reads itself, are sent to a sink that includes them
// only.
func TestServices(t *testing.T) {
	down := at80("10.1.0.9", 8000)
	down.Health = registryv1.Health_HEALTH_UNHEALTHY
	heavy := at80("10.1.0.2", 8000)
	heavy.Weight, heavy.MutualTls, heavy.Labels = 3, true, map[string]string{"version": "2"}
	half := &registryv1.Endpoint{Addresses: []string{"10.1.0.5"}, Ports: map[string]uint32{"http": 8000}}
	changes := append(web(map[string]string{"team": "shop"}, at80("10.1.0.1", 8000), at80("10.1.0.1", 9000), heavy, down, half),
		meshtest.Service("prod", "reviews", "80 http"), meshtest.Slice("prod", "reviews", "80 http", "10.2.0.1"),
		policy(&configv1.McpSink{NodeNamespace: "all", Include: []string{"kubernetes"}}, &configv1.McpSink{}))
	s := serve(t, changes...)
	got := s.connect("istio-system", "", entries).all()[entries]
	if names(got) != "consul/web.service.consul" {
		t.Fatalf("an istiod gets %q", names(got))
	}
	want := &networking.ServiceEntry{
		Hosts: []string{"web.service.consul"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}, {Number: 90, Name: "grpc", Protocol: "GRPC"}},
		Endpoints: []*networking.WorkloadEntry{
			{Address: "10.1.0.1", Ports: map[string]uint32{"http": 8000, "grpc": 8001}},
			{Address: "10.1.0.1", Ports: map[string]uint32{"http": 9000, "grpc": 9001}},
			{Address: "10.1.0.2", Ports: map[string]uint32{"http": 8000, "grpc": 8001}, Weight: 3, Labels: map[string]string{"version": "2", "security.istio.io/tlsMode": "istio"}},
		},
	}
	if e := body(t, got[0], &networking.ServiceEntry{}); !proto.Equal(e, want) {
		t.Errorf("the ServiceEntry is\n%v, want\n%v", e, want)
	}
	if l := got[0].GetMetadata().GetLabels(); len(l) != 1 || l["team"] != "shop" {
		t.Errorf("its labels are %v, want those of the service", l)
	}
	if got := names(s.connect("all", "", entries).all()[entries]); got != "consul/web.service.consul prod/reviews.prod.svc.cluster.local" {
		t.Errorf("a sink that includes Kubernetes gets %q", got)
	}
}

// MCP-15: istiod's routes name the cluster of a host in small letters, so a host with capital
// letters, as Nacos' have, is there in small ones too; not if another service has that one.
func TestCapitalLetters(t *testing.T) {
	nacos := meshtest.Object("Service", "public", "web", &registryv1.Service{
		Hostname: "web.DEFAULT-GROUP.public.nacos", Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}},
	}).From("nacos").In("public")
	s := serve(t, policy(), nacos)
	c := s.connect("istio-system", "", entries)
	hosts := func(want ...string) {
		t.Helper()
		got := c.all()[entries]
		if len(got) == 0 || !slices.Equal(body(t, got[len(got)-1], &networking.ServiceEntry{}).GetHosts(), want) {
			t.Errorf("sent %v, want the hosts %q", got, want)
		}
	}
	hosts("web.DEFAULT-GROUP.public.nacos", "web.default-group.public.nacos")
	s.apply(meshtest.Object("ServiceEntry", "a", "a", entry("web.default-group.public.nacos")))
	hosts("web.DEFAULT-GROUP.public.nacos")
}

// Without a healthy instance the host stays, with no endpoint.
func TestServiceWithoutInstances(t *testing.T) {
	s := serve(t, append(web(nil), policy())...)
	got := s.connect("istio-system", "", entries).all()[entries]
	if e := body(t, got[0], &networking.ServiceEntry{}); len(e.GetEndpoints()) != 0 || len(e.GetPorts()) != 2 {
		t.Errorf("the ServiceEntry is %v", e)
	}
}

// AGG-2: a host that belongs to another source is left out of a ServiceEntry, and a ServiceEntry
// without a host of its own is not sent.
func TestLostHosts(t *testing.T) {
	lost := meshtest.Object("ServiceEntry", "shop", "both", entry("a.example", "b.example")).From("mcpxds")
	gone := meshtest.Object("ServiceEntry", "shop", "gone", entry("a.example")).From("mcpxds")
	s := serve(t, policy(), lost, gone, meshtest.Object("ServiceEntry", "shop", "first", entry("a.example")))
	c := s.connect("istio-system", "", entries)
	got := c.all()[entries]
	if names(got) != "shop/both shop/first" {
		t.Fatalf("sent %q", names(got))
	}
	if hosts := body(t, got[0], &networking.ServiceEntry{}).GetHosts(); !slices.Equal(hosts, []string{"b.example"}) {
		t.Errorf("the hosts of the one that lost a host are %q", hosts)
	}
	s.apply(meshtest.Object("ServiceEntry", "shop", "first", entry("a.example")).Gone())
	if got := names(c.all()[entries]); got != "shop/both shop/gone" {
		t.Errorf("after the first is gone: %q", got)
	}
}

// A policy that fails closed denies what it selects at the sink, too (POL-15), and a dry run
// stays one (AZ-8).
func TestPolicies(t *testing.T) {
	inner, err := anypb.New(&security.AuthorizationPolicy{Rules: []*security.Rule{{}}})
	if err != nil {
		t.Fatal(err)
	}
	closed := &registryv1.Closed{MatchLabels: map[string]string{"app": "web"}}
	s := serve(t, policy(), meshtest.Object("AuthorizationPolicy", "shop", "dry", &registryv1.DryRun{Policy: inner}),
		meshtest.Object("AuthorizationPolicy", "shop", "bad", closed), meshtest.Object("PeerAuthentication", "shop", "bad", closed))
	got := s.connect("istio-system", "", policies, "security.istio.io/v1/PeerAuthentication").all()
	if names(got[policies]) != "shop/bad shop/bad.peerauthentication shop/dry" || len(got["security.istio.io/v1/PeerAuthentication"]) != 0 {
		t.Fatalf("sent %q", names(got[policies]))
	}
	for _, r := range got[policies][:2] {
		p := body(t, r, &security.AuthorizationPolicy{})
		if p.GetAction() != security.AuthorizationPolicy_DENY || len(p.GetRules()) != 1 || p.GetSelector().GetMatchLabels()["app"] != "web" {
			t.Errorf("%s is %v", r.GetMetadata().GetName(), p)
		}
	}
	if a := got[policies][2].GetMetadata().GetAnnotations(); a["istio.io/dry-run"] != "true" {
		t.Errorf("the dry run has the annotations %v", a)
	}
}

// MCP-14: each version of a kind has the same objects, and the version of an object is 16 hex
// digits of its content's hash: the same on a frontend that came to the world in another way.
func TestVersions(t *testing.T) {
	changes := append(web(nil, at80("10.1.0.1", 8000)), policy(), route("a.example"), meshtest.Object("ServiceEntry", "shop", "e", entry("e.example")))
	one, two := serve(t, changes...), serve(t, route("b.example"))
	slices.Reverse(changes)
	for _, c := range changes {
		two.apply(c)
	}
	var types []string
	for _, k := range kind.Istio() {
		for _, v := range k.Versions {
			types = append(types, k.Group+"/"+v+"/"+k.DocumentKind())
		}
	}
	hex := regexp.MustCompile(`^[0-9a-f]{16}$`)
	a, b := one.connect("istio-system", "", types...), two.connect("istio-system", "", types...)
	sets := map[string]string{}
	for range types {
		x, y := a.next(), b.next()
		if x == nil || y == nil || x.Type != y.Type || x.Set.Version != y.Set.Version || !slices.EqualFunc(x.Set.Slices, y.Set.Slices, bytes.Equal) {
			t.Fatalf("two frontends send %+v and %+v", x, y)
		}
		if v, ok := sets[x.Kind]; ok && v != x.Set.Version {
			t.Errorf("%s has another set than an other version of its kind", x.Type)
		}
		sets[x.Kind] = x.Set.Version
		for _, r := range decode(t, x) {
			if v := r.GetMetadata().GetVersion(); !hex.MatchString(v) {
				t.Errorf("%s has the version %q", r.GetMetadata().GetName(), v)
			}
		}
	}
	if a.next() != nil {
		t.Error("a type was answered twice")
	}
}

// MCP-6, MCP-13: a first request may have a nonce; each type is answered, unknown ones empty;
// a change sends its kind only, and the newest set to a client that has not answered; after a
// NACK the next change is sent.
func TestStream(t *testing.T) {
	s := serve(t, append(web(nil, at80("10.1.0.1", 8000)), policy(), route("a.example"))...)
	c := s.connect("istio-system", "", "core/v1alpha1/MeshConfig", routes, entries)
	if got := c.all(); len(got) != 3 || len(got["core/v1alpha1/MeshConfig"]) != 0 || names(got[routes]) != "shop/web" {
		t.Fatalf("the first answers are %v", got)
	}
	s.apply(web(nil, at80("10.1.0.2", 8000))[1])
	r := c.next()
	if r == nil || r.Type != entries || c.next() != nil {
		t.Fatalf("after a change of an endpoint: %+v, and then more", r)
	}
	s.apply(web(nil, at80("10.1.0.3", 8000))[1], route("b.example"))
	s.apply(web(nil, at80("10.1.0.4", 8000))[1])
	if other := c.next(); other == nil || other.Type != routes || c.next() != nil {
		t.Errorf("before its answer: %+v, want the routes and nothing else", other)
	}
	c.request(mcp.Request{Type: entries, Nonce: "n-0"}) // about an earlier response
	if c.next() != nil {
		t.Error("an answer to an earlier response counts")
	}
	if a := c.request(mcp.Request{Type: entries, Nonce: r.Nonce, Rejected: true, Error: "bad"}); a == nil || !a.Rejected || a.Kind != "ServiceEntry" {
		t.Errorf("a NACK counts as %+v", a)
	}
	i := slices.IndexFunc(c.stream.Status(), func(s mcp.Status) bool { return s.Type == entries })
	if st := c.stream.Status()[i]; st.Nack == nil || st.Nack.Message != "bad" || st.Acked != (ident.Position{Epoch: 1, Seq: 1}) {
		t.Errorf("after the NACK the status is %+v", st)
	}
	r = c.next()
	e := body(t, decode(t, r)[0], &networking.ServiceEntry{})
	if e.GetEndpoints()[0].GetAddress() != "10.1.0.4" {
		t.Errorf("the next set has %v, want the newest", e.GetEndpoints())
	}
	c.ack(r)
	s.apply(meshtest.Object("Gateway", "shop", "g", &networking.Gateway{}), meshtest.Slice("prod", "reviews", "80", "10.2.0.1"))
	if r := c.next(); r != nil {
		t.Errorf("a change of other kinds sends %s", r.Type)
	}
	if st := c.stream.Status()[i]; st.Acked.Seq != s.seq || st.Nack != nil {
		t.Errorf("in the end the status is %+v, want it at %d", st, s.seq)
	}
}

// Requests that cannot be answered as a sink means them are refused.
func TestRefusedRequests(t *testing.T) {
	s := serve(t, policy())
	c := s.connect("istio-system", "")
	for _, r := range []mcp.Request{{}, {Type: entries, Named: true}} {
		if _, err := c.stream.Request(at, r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	var err error
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("a stream may ask for 1000 types")
		}
		_, err = c.stream.Request(at, mcp.Request{Type: strings.Repeat("x", i+1)})
	}
}

// MCP-16: the first entry that matches the client decides what it gets, no match refuses it, and
// so does a policy without entries. A new policy counts for streams that stand.
func TestSinks(t *testing.T) {
	s := serve(t, append(web(nil, at80("10.1.0.1", 8000)), route("a.example"),
		meshtest.Object("ServiceEntry", "shop", "e", entry("e.example")), meshtest.Object("ServiceEntry", "other", "e", entry("f.example")),
		policy(
			&configv1.McpSink{NodeNamespace: "istio-*", NodeRevision: "canary", Sources: []string{"con*"}},
			&configv1.McpSink{NodeNamespace: "istio-*", Kinds: []string{"ServiceEntry"}, Namespaces: []string{"shop"}},
		))...)
	for _, test := range []struct{ revision, entries, routes string }{
		{"canary", "consul/web.service.consul", ""},
		{"", "shop/e", ""},
	} {
		got := s.connect("istio-system", test.revision, entries, routes).all()
		if names(got[entries]) != test.entries || names(got[routes]) != test.routes {
			t.Errorf("revision %q gets %q and %q", test.revision, names(got[entries]), names(got[routes]))
		}
	}
	if err := s.connect("default", "").stream.Refusal(); err == nil || !strings.Contains(err.Error(), `"default"`) || !strings.Contains(err.Error(), "mcp.sinks") {
		t.Errorf("another namespace is refused with %v", err)
	}
	c := s.connect("istio-system", "", entries)
	c.all()
	s.apply(policy(&configv1.McpSink{Namespaces: []string{"other"}}))
	if got := names(c.all()[entries]); got != "other/e" {
		t.Errorf("after a new policy the stream gets %q", got)
	}
	s.apply(meshtest.Object("MeshPolicy", "", "default", &configv1.MeshPolicy{}))
	if _, err := c.stream.Next(at); err == nil {
		t.Error("a stream stays that no entry matches any more")
	}
}
