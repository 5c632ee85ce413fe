package index_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

func TestVS1NamesInFull(t *testing.T) {
	pc := PushContext(t, YAML(t, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v, namespace: a}
spec:
  hosts: [reviews, "*.example", api.example]
  gateways: [mesh, g, ./h, b/i, j.c.svc.cluster.local, g]
  http:
  - match: [{gateways: [g, mesh], sourceLabels: {app: x}, sourceNamespace: a}]
    route:
    - {destination: {host: reviews, subset: v1}}
    - {destination: {host: reviews.b}}
    mirror: {host: shadow}
    mirrors: [{destination: {host: other}}]
  tls: [{match: [{sniHosts: [x]}], route: [{destination: {host: tls}}]}]
`)...)
	list := pc.Read().VirtualServices(commonView, "a/g")
	if len(list) != 1 {
		t.Fatalf("%d VirtualServices", len(list))
	}
	want := &index.VirtualServiceHead{
		Key:          ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "a", Name: "v"},
		Hosts:        []string{"reviews.a.svc.cluster.local", "*.example", "api.example"},
		Gateways:     []string{"a/g", "a/h", "b/i", "c/j", "mesh"},
		Destinations: []string{"other.a.svc.cluster.local", "reviews.a.svc.cluster.local", "reviews.b", "shadow.a.svc.cluster.local", "tls.a.svc.cluster.local"},
		Sources:      []string{index.SourceSelector(map[string]string{"app": "x"}, "a")},
		HTTP:         true, TLS: true,
	}
	if diff := cmp.Diff(want, list[0]); diff != "" {
		t.Errorf("head (-want +got):\n%s", diff)
	}
	spec := pc.Read().VirtualService(want.Key).GetHttp()[0]
	if got := spec.GetRoute()[0].GetDestination(); got.GetHost() != "reviews.a.svc.cluster.local" || got.GetSubset() != "v1" {
		t.Errorf("destination %v", got)
	}
	if diff := cmp.Diff([]string{"a/g", "mesh"}, spec.GetMatch()[0].GetGateways()); diff != "" {
		t.Errorf("gateways of a match (-want +got):\n%s", diff)
	}
}

func routes(namespace, name string, v *networking.VirtualService) Change {
	return Object("VirtualService", namespace, name, v)
}

func TestVS2MeshIsImplicit(t *testing.T) {
	pc := PushContext(t,
		routes("a", "implicit", &networking.VirtualService{Hosts: []string{"x"}}),
		routes("a", "edge", &networking.VirtualService{Hosts: []string{"x"}, Gateways: []string{"g"}}),
		routes("a", "delegate", &networking.VirtualService{}),
	)
	for gateway, want := range map[string]string{"mesh": "implicit", "a/g": "edge"} {
		if got := pc.Read().VirtualServices(commonView, gateway); len(got) != 1 || got[0].Key.Name != want {
			t.Errorf("at %s %v, want %s", gateway, got, want)
		}
	}
	if pc.Read().VirtualService(ident.Key{Namespace: "a", Name: "delegate"}) == nil {
		t.Error("the VirtualService without hosts is missing")
	}
}

func TestVS5OldestFirst(t *testing.T) {
	private := []string{"."}
	for name, test := range map[string]struct {
		changes []Change
		want    []string // as namespace a sees them
		losers  []string
	}{
		"by age": {[]Change{
			routes("a", "x", &networking.VirtualService{Hosts: []string{"h.com"}}),
			routes("a", "y", &networking.VirtualService{Hosts: []string{"h.com"}}).At(time.Unix(2, 0)),
			routes("a", "z", &networking.VirtualService{Hosts: []string{"h.com"}}).At(time.Unix(1, 0)),
		}, []string{"z", "y", "x"}, []string{"x (spec.hosts): conflict", "y (spec.hosts): conflict"}},
		"by name": {[]Change{
			routes("b", "x", &networking.VirtualService{Hosts: []string{"h.com"}}),
			routes("a", "y", &networking.VirtualService{Hosts: []string{"h.com"}}),
		}, []string{"y", "x"}, []string{"x (spec.hosts): conflict"}},
		"private in two namespaces": {[]Change{
			routes("b", "x", &networking.VirtualService{Hosts: []string{"h.com"}, ExportTo: private}),
			routes("a", "y", &networking.VirtualService{Hosts: []string{"h.com"}, ExportTo: private}),
		}, []string{"y"}, nil},
		"routers merge them": {[]Change{
			routes("a", "x", &networking.VirtualService{Hosts: []string{"h.com"}}),
			routes("a", "y", &networking.VirtualService{Hosts: []string{"h.com"}, Gateways: []string{"g"}}),
		}, []string{"x"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, test.changes...)
			var got []string
			for _, h := range pc.Read().VirtualServices(pc.Scope("a"), "mesh") {
				got = append(got, h.Key.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			expectProblems(t, pc, test.losers...)
		})
	}
}

func TestContentChangeNamesOneInput(t *testing.T) {
	w := publicMesh(t, 2)
	pc := index.NewPushContext(w)
	for name, test := range map[string]struct {
		change Change
		want   []index.Input
	}{
		"VirtualService": {virtualService("ns001", "svc0", 9), []index.Input{{Kind: index.InputVirtualService, A: "ns001", B: "svc0"}}},
		"DestinationRule": {
			Object("DestinationRule", "ns001", "svc0", &networking.DestinationRule{Host: "svc0"}),
			[]index.Input{{Kind: index.InputRule, A: "ns001", B: "svc0.ns001.svc.cluster.local"}},
		},
		"service": {
			Service("ns001", "svc1", "81 http"),
			[]index.Input{
				{Kind: index.InputServices}, {Kind: index.InputService, A: "ns001", B: "svc1.ns001.svc.cluster.local"},
				{Kind: index.InputEndpoints, A: "ns001", B: "svc1.ns001.svc.cluster.local"},
				{Kind: index.InputHost, A: "svc1.ns001.svc.cluster.local"},
				{Kind: index.InputServicesOf, A: "*"}, {Kind: index.InputServicesOf, A: "ns001"},
			},
		},
		"one more host of a VirtualService": {
			Object("VirtualService", "ns001", "svc0", &networking.VirtualService{Hosts: []string{"svc0", "svc1"}}),
			[]index.Input{
				{Kind: index.InputVirtualServices}, {Kind: index.InputVirtualService, A: "ns001", B: "svc0"},
				{Kind: index.InputVirtualServicesOf, A: "*"}, {Kind: index.InputVirtualServicesOf, A: "ns001"},
			},
		},
		"nothing": {Service("ns001", "svc1", "80 http").At(time.Time{}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			next, keys, err := w.Apply(Rows(test.change))
			if err != nil {
				t.Fatal(err)
			}
			_, got := pc.Next(next, keys)
			got = withoutTargets(got)
			if diff := cmp.Diff(test.want, got); diff != "" && len(test.want)+len(got) > 0 {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// withoutTargets leaves out the inputs that only Classify reads.
func withoutTargets(all []index.Input) []index.Input {
	return slices.DeleteFunc(all, func(in index.Input) bool { return in.Kind == index.InputTargets })
}

func ruleIn(namespace, name, host string, exportTo ...string) Change {
	return Object("DestinationRule", namespace, name, &networking.DestinationRule{Host: host, ExportTo: exportTo})
}

func TestDR1Lookup(t *testing.T) {
	const x = "x.svc-ns.svc.cluster.local"
	for name, test := range map[string]struct {
		rules []Change
		want  string // the rule's name for a client of namespace client
	}{
		"of the client":                           {[]Change{ruleIn("client", "c", x), ruleIn("svc-ns", "s", "x"), ruleIn("istio-system", "r", x)}, "c"},
		"of the service":                          {[]Change{ruleIn("svc-ns", "s", "x"), ruleIn("istio-system", "r", x)}, "s"},
		"of the root":                             {[]Change{ruleIn("istio-system", "r", x), ruleIn("other", "o", x)}, "r"},
		"never of other namespaces":               {[]Change{ruleIn("other", "o", x)}, ""},
		"a wildcard of the client":                {[]Change{ruleIn("client", "c", "*.local"), ruleIn("svc-ns", "s", "x")}, "c"},
		"the most specific":                       {[]Change{ruleIn("svc-ns", "a", "*"), ruleIn("svc-ns", "b", "*.cluster.local"), ruleIn("svc-ns", "c", "*.local")}, "b"},
		"the host itself":                         {[]Change{ruleIn("svc-ns", "a", "*.svc-ns.svc.cluster.local"), ruleIn("svc-ns", "b", x)}, "b"},
		"not exported (DR-24)":                    {[]Change{ruleIn("svc-ns", "s", x, "."), ruleIn("istio-system", "r", x)}, "r"},
		"exported to the client (DR-24)":          {[]Change{ruleIn("svc-ns", "s", x, "client"), ruleIn("istio-system", "r", x)}, "s"},
		"exported to no namespace (DR-24)":        {[]Change{ruleIn("client", "c", x, "~")}, ""},
		"the client's own, exported to others":    {[]Change{ruleIn("client", "c", x, "other"), ruleIn("svc-ns", "s", x)}, "s"},
		"the less specific if only it is visible": {[]Change{ruleIn("svc-ns", "s", x, "."), ruleIn("svc-ns", "w", "*.local")}, "w"},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, append(test.rules, Service("svc-ns", "x", "80"))...)
			got, _ := pc.Read().Rule(pc.Scope("client"), "svc-ns", x)
			if got.Name != test.want {
				t.Errorf("rule %+v, want %s", got, test.want)
			}
		})
	}
}

// A rule of the root namespace holds for all namespaces. For proxies in the root
// namespace a rule exported only to them wins, else the rule of the service's
// namespace.
func TestDR1RootNamespace(t *testing.T) {
	const x = "x.svc-ns.svc.cluster.local"
	service, all, own := ruleIn("svc-ns", "s", x), ruleIn("istio-system", "all", "*"), ruleIn("istio-system", "own", x, ".")
	for _, test := range []struct {
		rules []Change
		want  string
	}{
		{[]Change{service, all}, "s"}, {[]Change{service, all, own}, "own"}, {[]Change{all}, "all"},
	} {
		pc := PushContext(t, append(test.rules, Service("svc-ns", "x", "80"))...)
		if got, _ := pc.Read().Rule(pc.Scope("istio-system"), "svc-ns", x); got.Name != test.want {
			t.Errorf("rule %s, want %s", got.Name, test.want)
		}
		if got, _ := pc.Read().Rule(pc.Scope("client"), "svc-ns", x); got.Name == "own" {
			t.Error("other namespaces see a private rule of the root namespace")
		}
	}
}

func TestDR2Merge(t *testing.T) {
	subset := func(name, version string) *networking.Subset {
		return &networking.Subset{Name: name, Labels: map[string]string{"version": version}}
	}
	policy := func(bits uint32) *networking.TrafficPolicy {
		return &networking.TrafficPolicy{PortLevelSettings: []*networking.TrafficPolicy_PortTrafficPolicy{{Port: &networking.PortSelector{Number: bits}}}}
	}
	rule := func(name string, created int64, r *networking.DestinationRule) Change {
		r.Host = "x"
		return Object("DestinationRule", "a", name, r).At(time.Unix(created, 0))
	}
	pc := PushContext(t, Service("a", "x", "80"),
		rule("third", 3, &networking.DestinationRule{TrafficPolicy: policy(3), Subsets: []*networking.Subset{subset("v1", "other"), subset("v3", "3")}}),
		rule("first", 1, &networking.DestinationRule{Subsets: []*networking.Subset{subset("v1", "1")}}),
		rule("second", 2, &networking.DestinationRule{TrafficPolicy: policy(2), Subsets: []*networking.Subset{subset("v2", "2")}}),
		rule("apart", 4, &networking.DestinationRule{ExportTo: []string{"b"}, Subsets: []*networking.Subset{subset("v4", "4")}}),
	)
	host := "x.a.svc.cluster.local"
	id, ok := pc.Read().Rule(pc.Scope("b"), "a", host)
	if want := (index.RuleID{Namespace: "a", Host: host, Name: "first"}); !ok || id != want {
		t.Fatalf("rule %+v", id)
	}
	got, keys := pc.Read().DestinationRule(id)
	want := &networking.DestinationRule{
		Host: host, TrafficPolicy: policy(2), Subsets: []*networking.Subset{subset("v1", "1"), subset("v2", "2"), subset("v3", "3")},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(keys) != 3 || keys[0].Name != "first" || keys[2].Name != "third" {
		t.Errorf("the rule is merged from %v", keys)
	}
	expectProblems(t, pc, "apart (spec.exportTo): conflict", "third (spec.subsets): conflict", "third (spec.trafficPolicy): conflict")
}

// A rule with a workloadSelector counts for the proxies of its own namespace that
// match. For all others the next rule in the order of DR-1 counts.
func TestDR23Selects(t *testing.T) {
	const x = "x.svc-ns.svc.cluster.local"
	selecting := func(namespace, name, host, app string, exportTo ...string) Change {
		return Object("DestinationRule", namespace, name, &networking.DestinationRule{
			Host: host, ExportTo: exportTo, WorkloadSelector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}},
		})
	}
	all := Object("DestinationRule", "client", "c", &networking.DestinationRule{Host: x, WorkloadSelector: &typev1beta1.WorkloadSelector{}})
	for name, test := range map[string]struct {
		rules []Change
		// The names of the rules for proxies of namespace client with label app=a and
		// with app=b, and of namespace svc-ns with app=a.
		a, b, elsewhere string
	}{
		"the proxies that match":             {[]Change{selecting("client", "c", x, "a")}, "c", "", ""},
		"else the rule of the service":       {[]Change{selecting("client", "c", x, "a"), ruleIn("svc-ns", "s", "x")}, "c", "s", "s"},
		"before one for all":                 {[]Change{selecting("client", "z", x, "a"), ruleIn("client", "c", x)}, "z", "c", ""},
		"else a less specific one":           {[]Change{selecting("client", "c", x, "a"), ruleIn("client", "w", "*.local")}, "c", "w", ""},
		"the first of several":               {[]Change{selecting("client", "d", x, "a"), selecting("client", "c", x, "a"), selecting("client", "e", x, "b")}, "c", "e", ""},
		"without labels":                     {[]Change{all}, "c", "c", ""},
		"never in other namespaces":          {[]Change{selecting("svc-ns", "s", "x", "a"), ruleIn("istio-system", "r", x)}, "r", "r", "s"},
		"in the root namespace for its own":  {[]Change{selecting("istio-system", "r", x, "a")}, "", "", ""},
		"not exported to its own (DR-24)":    {[]Change{selecting("client", "c", x, "a", "other")}, "", "", ""},
		"exported to all means its own only": {[]Change{selecting("svc-ns", "s", "x", "a", "*")}, "", "", "s"},
	} {
		t.Run(name, func(t *testing.T) {
			// The rules come in an update, as they do while a mesh runs.
			service := Service("svc-ns", "x", "80")
			before := PushContext(t, service)
			keys := make([]ident.Key, len(test.rules))
			for i, r := range test.rules {
				keys[i] = r.Key()
			}
			pc, _ := before.Next(World(t, append(test.rules, service)...), keys)
			if before.SameClasses(pc) {
				t.Error("no proxy is classified again")
			}
			for _, client := range []struct{ namespace, app, want string }{
				{"client", "a", test.a}, {"client", "b", test.b}, {"svc-ns", "a", test.elsewhere},
			} {
				c := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: client.namespace, Labels: map[string]string{"app": client.app}})
				for of, scope := range map[string]index.Scope{"CDS": c.CDS.Scope, "EDS": c.EDS.Scope, "RDS": c.RDS.Scope} {
					if got, _ := pc.Read().Rule(scope, "svc-ns", x); got.Name != client.want {
						t.Errorf("%s of %s/%s: rule %q, want %q", of, client.namespace, client.app, got.Name, client.want)
					}
				}
				if !slices.Contains(pc.Classes(), c) {
					t.Errorf("the gate does not check the class of %s/%s: %s", client.namespace, client.app, c)
				}
			}
		})
	}
}

// A namespace shares the common view until it has a rule for a host of another
// namespace.
func TestRuleScopes(t *testing.T) {
	own := []Change{Service("a", "x", "80"), ruleIn("a", "own", "x"), Service("b", "y", "80")}
	for name, test := range map[string]struct {
		more  []Change
		scope string
	}{
		"for its own hosts":          {nil, ""},
		"for a host of another":      {[]Change{ruleIn("a", "r", "y.b.svc.cluster.local")}, "a"},
		"for a host without service": {[]Change{ruleIn("a", "r", "z.example")}, ""},
		"for a host that two have":   {[]Change{Object("ServiceEntry", "b", "e", &networking.ServiceEntry{Hosts: []string{"x.a.svc.cluster.local"}})}, "a"},
		"exported to itself only":    {[]Change{ruleIn("a", "r", "x", ".")}, "a"},
		"of another, exported to it": {[]Change{ruleIn("b", "r", "y", "a")}, "a"},
		"for many hosts":             {[]Change{ruleIn("a", "r", "*.local")}, "a"},
	} {
		pc := PushContext(t, append(own, test.more...)...)
		if got := pc.Scope("a").Rules; got != test.scope {
			t.Errorf("%s: scope %q, want %q", name, got, test.scope)
		}
	}
}

func TestGW1Selector(t *testing.T) {
	gateway := func(name string, labels map[string]string) Change {
		return Object("Gateway", "a", name, &networking.Gateway{Selector: labels})
	}
	pc := PushContext(t, gateway("all", nil), gateway("edge", map[string]string{"istio": "edge"}),
		gateway("two", map[string]string{"istio": "edge", "zone": "z"}), gateway("older", map[string]string{"istio": "edge"}).At(time.Unix(1, 0)))
	edge := map[string]string{"istio": "edge", "app": "x"}
	for name, test := range map[string]struct {
		proxy proxy.Proxy
		want  index.SelectorSet
	}{
		"a router":                  {proxy.Proxy{Type: proxy.Router}, "*"},
		"a router with labels":      {proxy.Proxy{Type: proxy.Router, Labels: edge}, "*\nistio=\"edge\""},
		"no sidecar":                {proxy.Proxy{Type: proxy.Sidecar, Labels: edge}, ""},
		"no gRPC client":            {proxy.Proxy{Type: proxy.Router, GRPC: true, Labels: edge}, ""},
		"a router with other value": {proxy.Proxy{Type: proxy.Router, Labels: map[string]string{"istio": "x"}}, "*"},
	} {
		class := index.Classify(pc, &test.proxy)
		if class.LDS.Gateways != test.want || class.RDS.Gateways != test.want {
			t.Errorf("%s: %q, want %q", name, class.LDS.Gateways, test.want)
		}
	}
	if list := pc.Read().Gateways(`istio="edge"`); len(list) != 2 || list[0].Key.Name != "older" {
		t.Errorf("Gateways %+v", list)
	}
}

func TestVSM10Sources(t *testing.T) {
	match := func(labels map[string]string, namespace string) []*networking.HTTPRoute {
		return []*networking.HTTPRoute{{Match: []*networking.HTTPMatchRequest{{SourceLabels: labels, SourceNamespace: namespace}}}}
	}
	x := map[string]string{"app": "x"}
	pc := PushContext(t,
		routes("a", "one", &networking.VirtualService{Hosts: []string{"x"}, Http: match(x, "")}),
		routes("a", "two", &networking.VirtualService{Hosts: []string{"y"}, Http: match(x, "b")}),
		routes("a", "tcp", &networking.VirtualService{Hosts: []string{"z"}, Tcp: []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{SourceLabels: x}}}}}),
	)
	all, inB := index.SourceSelector(x, ""), index.SourceSelector(x, "b")
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "b", Labels: map[string]string{"app": "x", "v": "1"}})
	if diff := cmp.Diff([]string{all, inB}, class.RDS.Sources.Selectors()); diff != "" {
		t.Errorf("RDS (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{all}, class.LDS.Sources.Selectors()); diff != "" {
		t.Errorf("LDS (-want +got):\n%s", diff)
	}
	if class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "b"}); class.RDS.Sources != "" {
		t.Errorf("a proxy without labels has the sources %q", class.RDS.Sources)
	}
}

func TestClasses(t *testing.T) {
	pc := PushContext(t, Service("a", "x", "80"), ruleIn("b", "r", "x.a.svc.cluster.local"),
		Object("Gateway", "b", "g", &networking.Gateway{Selector: map[string]string{"istio": "edge"}}),
		routes("a", "v", &networking.VirtualService{Hosts: []string{"x"}, Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{{SourceNamespace: "c"}},
		}}}))
	var got []string
	for _, c := range pc.Classes() {
		got = append(got, c.String())
	}
	want := []string{
		"router", "sidecar", "gRPC", "sidecar a", "router b", "sidecar b", "gRPC b", `router; istio="edge"`, `router b; istio="edge"`,
		`sidecar; namespace "c"`, "sidecar", "gRPC", // of workloads with ports of all kinds
		"router", // names of agents, and nothing else
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The gate generates the names of agents in every scope that an agent can have (NDS-1).
func TestGateChecksNames(t *testing.T) {
	entry := Object("ServiceEntry", "b", "private", &networking.ServiceEntry{
		Hosts: []string{"private.example"}, ExportTo: []string{"."}, Ports: []*networking.ServicePort{{Number: 80, Name: "http"}},
		Resolution: networking.ServiceEntry_STATIC, Addresses: []string{"240.0.0.1"},
	})
	pc := PushContext(t, Service("a", "x", "80"), entry)
	checked := map[index.ProxyClass]bool{}
	for _, c := range pc.Classes() {
		checked[c.Only(ident.NDS)] = true
	}
	metadata := &structpb.Struct{Fields: map[string]*structpb.Value{proxy.NamesField: structpb.NewStringValue("true")}}
	for _, namespace := range []string{"a", "b"} {
		c := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace, Metadata: metadata})
		if only := c.Only(ident.NDS); !only.NDS.Names || !checked[only] {
			t.Errorf("the gate does not check the names of agents in namespace %s: %+v", namespace, only.NDS)
		}
	}
}
