package index_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
)

// commonView is the scope of all namespaces that have none of their own.
var commonView index.Scope

const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"

func only(t *testing.T, pc *index.PushContext) *index.Service {
	t.Helper()
	list := pc.Read().Services(commonView)
	if len(list) != 1 {
		t.Fatalf("%d services", len(list))
	}
	return list[0]
}

func TestSVC1Identity(t *testing.T) {
	for name, test := range map[string]struct {
		service *registryv1.Service
		want    string
	}{
		"Kubernetes":             {&registryv1.Service{}, "x.a.svc.cluster.local"},
		"another cluster domain": {&registryv1.Service{DomainSuffix: "corp.example"}, "x.a.svc.corp.example"},
		"another registry":       {&registryv1.Service{Hostname: "x.consul"}, "x.consul"},
	} {
		t.Run(name, func(t *testing.T) {
			s := only(t, PushContext(t, Object("Service", "a", "x", test.service)))
			if s.Hostname != test.want || s.Namespace != "a" || s.Resolution != index.Static || !s.Kubernetes {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestSVC3Headless(t *testing.T) {
	s := only(t, PushContext(t, Object("Service", "a", "x", &registryv1.Service{Headless: true})))
	if !s.Headless || s.Resolution != index.Passthrough {
		t.Errorf("%+v", s)
	}
}

func TestSVC7ProtocolSelection(t *testing.T) {
	for _, test := range []struct {
		number            uint32
		name, appProtocol string
		want              index.Protocol
	}{
		{80, "http", "", index.HTTP},
		{80, "http-web", "", index.HTTP},
		{80, "HTTP-web", "", index.HTTP},
		{80, "httpx", "", index.Sniffed},
		{80, "http2", "", index.HTTP2},
		{80, "http2-a-b", "", index.HTTP2},
		{80, "http_proxy", "", index.HTTP},
		{80, "grpc", "", index.GRPC},
		{80, "grpc-web", "", index.GRPCWeb},
		{80, "grpc-web-x", "", index.GRPCWeb},
		{80, "grpc-x", "", index.GRPC},
		{80, "https-x", "", index.HTTPS},
		{80, "tls", "", index.TLS},
		{80, "tcp-http", "", index.TCP},
		{80, "mongo", "", index.Mongo},
		{80, "mysql", "", index.MySQL},
		{80, "redis-cache", "", index.Redis},
		{80, "http", "tcp", index.TCP},
		{80, "tcp", "http", index.HTTP},
		{80, "http", "example.com/own", index.Sniffed},
		{80, "x", "kubernetes.io/h2c", index.HTTP2},
		{80, "x", "kubernetes.io/ws", index.HTTP},
		{80, "x", "kubernetes.io/wss", index.HTTPS},
		// The servers of these ports speak first, so detection would wait (SVC-8).
		{3306, "", "", index.TCP},
		{3306, "http", "", index.HTTP},
		{25, "mail", "", index.TCP},
		{53, "", "", index.TCP},
		{27017, "", "", index.TCP},
		{80, "", "", index.Sniffed},
	} {
		port := &registryv1.ServicePort{Number: test.number, Name: test.name, AppProtocol: test.appProtocol}
		s := only(t, PushContext(t, Object("Service", "a", "x", &registryv1.Service{Ports: []*registryv1.ServicePort{port}})))
		if got := s.Ports[0].Protocol; got != test.want {
			t.Errorf("port %d named %q with appProtocol %q: protocol %d, want %d", test.number, test.name, test.appProtocol, got, test.want)
		}
	}
}

func TestSVC7PortsOfTCPOnly(t *testing.T) {
	pc := PushContext(t, Object("Service", "a", "x", &registryv1.Service{Ports: []*registryv1.ServicePort{
		{Number: 90, Name: "http"}, {Number: 53, Transport: "UDP"}, {Number: 80, Transport: "TCP", TargetPort: 8080},
	}}))
	want := []index.Port{{Number: 80, Target: 8080}, {Number: 90, Name: "http", Protocol: index.HTTP}}
	if diff := cmp.Diff(want, only(t, pc).Ports); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func alias(namespace, name, target string) Change {
	return Object("Service", namespace, name, &registryv1.Service{ExternalName: target})
}

func TestSVC4Aliases(t *testing.T) {
	pc := PushContext(t,
		Service("a", "real", "80 http"),
		alias("b", "near", "real.a.svc.cluster.local"),
		alias("b", "far", "near.b.svc.cluster.local"),
		alias("b", "nowhere", "unknown.example"),
		alias("c", "loop", "pool.c.svc.cluster.local"),
		alias("c", "pool", "loop.c.svc.cluster.local"),
	)
	s := only(t, pc)
	if diff := cmp.Diff([]string{"far.b.svc.cluster.local", "near.b.svc.cluster.local"}, s.Aliases); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
	for host, want := range map[string]*index.Service{
		"far.b.svc.cluster.local": s, "near.b.svc.cluster.local": s, "real.a.svc.cluster.local": s,
		"nowhere.b.svc.cluster.local": nil, "loop.c.svc.cluster.local": nil,
	} {
		if got := pc.Read().ServiceByHost(commonView, host); got != want {
			t.Errorf("%s is %+v", host, got)
		}
	}
	expectProblems(t, pc, "loop (spec.externalName): invalid", "pool (spec.externalName): invalid")
}

// expectProblems checks which objects and fields have Diagnostics.
func expectProblems(t *testing.T, pc *index.PushContext, want ...string) {
	t.Helper()
	var got []string
	for _, d := range pc.Diagnostics() {
		got = append(got, d.Key.Name+" ("+d.Field+"): "+d.Code)
		if d.Reason == "" || d.Advice == "" || d.Effect == "" || d.Key == (ident.Key{}) {
			t.Errorf("an incomplete diagnostic: %+v", d)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

func TestSE1HostsAndAddresses(t *testing.T) {
	pc := PushContext(t, YAML(t, entry+`
metadata: {name: e, namespace: a}
spec:
  hosts: [one.example, "*.two.example"]
  addresses: [10.0.0.0/24, 10.1.0.1/32, 10.1.0.1, "::1/128"]
  ports:
  - {number: 443, name: tls, protocol: TLS, targetPort: 8443}
  - {number: 80, name: http, protocol: http}
  - {number: 53, name: dns, protocol: UDP}
  location: MESH_EXTERNAL
  resolution: NONE
  subjectAltNames: [san]
`)...)
	list := pc.Read().Services(commonView)
	if len(list) != 2 || list[0].Hostname != "*.two.example" || list[1].Hostname != "one.example" {
		t.Fatalf("services %+v", values(list))
	}
	key := ident.Key{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "a", Name: "e"}
	want := &index.Service{
		ServiceID: index.ServiceID{Namespace: "a", Hostname: "one.example"}, Key: key,
		Addresses: []string{"10.0.0.0/24", "10.1.0.1", "::1"},
		Ports:     []index.Port{{Number: 80, Name: "http", Protocol: index.HTTP}, {Number: 443, Name: "tls", Protocol: index.TLS, Target: 8443}},
		External:  true, Resolution: index.Passthrough, ExportTo: index.Visibility{"*"}, SubjectAltNames: []string{"san"},
	}
	if diff := cmp.Diff(want, list[1]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSE14DuplicateHosts(t *testing.T) {
	entryOf := func(name string, resolution networking.ServiceEntry_Resolution, port uint32, protocol, ip string) Change {
		return Object("ServiceEntry", "a", name, &networking.ServiceEntry{
			Hosts: []string{"x.a.svc.cluster.local"}, Resolution: resolution, Addresses: []string{ip},
			Ports:     []*networking.ServicePort{{Number: port, Name: "p", Protocol: protocol}},
			Endpoints: []*networking.WorkloadEntry{{Address: ip}},
		})
	}
	static, dns := networking.ServiceEntry_STATIC, networking.ServiceEntry_DNS
	old, young := time.Unix(1, 0), time.Unix(2, 0)
	t.Run("the older one's ports, endpoints of both", func(t *testing.T) {
		pc := PushContext(t,
			entryOf("young", static, 80, "TCP", "10.0.0.2").At(young), entryOf("old", static, 80, "HTTP", "10.0.0.1").At(old),
			entryOf("other-port", static, 90, "TCP", "10.0.0.3").At(young),
		)
		s := only(t, pc)
		want := []index.Port{{Number: 80, Name: "p", Protocol: index.HTTP}, {Number: 90, Name: "p", Protocol: index.TCP}}
		if diff := cmp.Diff(want, s.Ports); diff != "" || s.Key.Name != "old" {
			t.Errorf("ports of %s (-want +got):\n%s", s.Key, diff)
		}
		if got := addresses(pc, s.ServiceID, 80); got != "10.0.0.1:80 10.0.0.2:80" {
			t.Errorf("endpoints %s", got)
		}
		expectProblems(t, pc)
	})
	t.Run("another resolution loses", func(t *testing.T) {
		pc := PushContext(t, entryOf("young", dns, 90, "TCP", "10.0.0.2").At(young), entryOf("old", static, 80, "HTTP", "10.0.0.1").At(old))
		if s := only(t, pc); len(s.Ports) != 1 || addresses(pc, s.ServiceID, 80) != "10.0.0.1:80" {
			t.Errorf("%+v", s)
		}
		expectProblems(t, pc, "young (spec.hosts): conflict")
	})
	t.Run("a Service beats an older ServiceEntry", func(t *testing.T) {
		pc := PushContext(t, entryOf("old", static, 80, "HTTP", "10.0.0.1").At(old), Service("a", "x", "90 tcp").At(young))
		if s := only(t, pc); !s.Kubernetes || len(s.Ports) != 1 || addresses(pc, s.ServiceID, 90) != "" {
			t.Errorf("%+v", s)
		}
		expectProblems(t, pc, "old (spec.hosts): conflict")
	})
}

func TestVIS1ExportTo(t *testing.T) {
	for _, test := range []struct {
		exportTo string
		sees     string // which of a (its own), b, c
	}{
		{"", "abc"}, {"*", "abc"}, {".", "a"}, {"a", "a"}, {"~", ""}, {"b", "b"}, {". b", "ab"}, {". *", "abc"}, {"~ b", ""}, {"* ~", "abc"},
	} {
		pc := PushContext(t, Object("Service", "a", "x", &registryv1.Service{ExportTo: strings.Fields(test.exportTo)}))
		got := ""
		for _, ns := range []string{"a", "b", "c"} {
			if len(pc.Read().Services(pc.Scope(ns))) > 0 {
				got += ns
			}
		}
		if got != test.sees {
			t.Errorf("exportTo [%s] is seen by %q, want %q", test.exportTo, got, test.sees)
		}
	}
}

func TestVIS3OneServiceAHost(t *testing.T) {
	entryIn := func(namespace string, created int64) Change {
		return Object("ServiceEntry", namespace, "e", &networking.ServiceEntry{Hosts: []string{"x.k.svc.cluster.local"}}).At(time.Unix(created, 0))
	}
	pc := PushContext(t, entryIn("a", 1), entryIn("b", 2), entryIn("k2", 3), Service("k", "x", "80").At(time.Unix(9, 0)))
	for namespace, want := range map[string]string{"a": "a", "b": "b", "k2": "k2", "k": "k", "elsewhere": "k"} {
		if got := pc.Read().ServiceByHost(pc.Scope(namespace), "x.k.svc.cluster.local"); got.Namespace != want {
			t.Errorf("%s sees the service of %s, want %s", namespace, got.Namespace, want)
		}
	}
	expectProblems(t, pc, "e (spec.hosts): conflict", "e (spec.hosts): conflict", "e (spec.hosts): conflict")
	pc = PushContext(t, entryIn("b", 2), entryIn("a", 3))
	if got := pc.Read().ServiceByHost(pc.Scope("elsewhere"), "x.k.svc.cluster.local"); got.Namespace != "b" {
		t.Errorf("got the service of %s, want that of b, which is older", got.Namespace)
	}
}

// Services with equal names in several clusters are one service. An object of
// another source with the same host is not part of it.
func TestServicesOfSeveralClusters(t *testing.T) {
	in := func(cluster string, c Change) Change { return c.From("kubernetes").In(cluster) }
	pc := PushContext(t,
		in("one", Service("a", "x", "80 http")), in("one", Slice("a", "x", "8080 http", "10.0.1.1")),
		in("two", Service("a", "x", "80 web", "90")), in("two", Slice("a", "x", "8081 web", "10.0.2.1")),
		Service("a", "x", "80 http"), Slice("a", "x", "8080 http", "10.0.3.1"),
	)
	s := only(t, pc)
	want := []index.Port{{Number: 80, Name: "http", Protocol: index.HTTP}, {Number: 90}}
	if diff := cmp.Diff(want, s.Ports); s.Key.Instance != "one" || diff != "" {
		t.Errorf("of %s, ports (-want +got):\n%s", s.Key, diff)
	}
	if got := addresses(pc, s.ServiceID, 80); got != "10.0.1.1:8080 10.0.2.1:8081" {
		t.Errorf("endpoints %s", got)
	}
	if got := pc.Read().Endpoints(s.ServiceID)[80][1].ClusterID; got != "two" {
		t.Errorf("cluster %q", got)
	}
	expectProblems(t, pc, "x (metadata.name): conflict", "x (spec.ports): conflict")
}

// A cluster with another DNS domain has hosts of its own.
func TestServicesOfAnotherDomain(t *testing.T) {
	in := func(cluster, suffix string) Change {
		return Object("Service", "a", "x", &registryv1.Service{DomainSuffix: suffix, Ports: []*registryv1.ServicePort{{Number: 80}}}).From("kubernetes").In(cluster)
	}
	pc := PushContext(t,
		in("one", ""), Slice("a", "x", "8080", "10.0.1.1").From("kubernetes").In("one"),
		in("two", "corp.example"), Slice("a", "x", "8080", "10.0.2.1").From("kubernetes").In("two"),
	)
	for suffix, want := range map[string]string{"cluster.local": "10.0.1.1:8080", "corp.example": "10.0.2.1:8080"} {
		if got := addresses(pc, index.ServiceID{Namespace: "a", Hostname: "x.a.svc." + suffix}, 80); got != want {
			t.Errorf("%s: endpoints %s, want %s", suffix, got, want)
		}
	}
}

// If a Service differs between clusters, the Service of the winning cluster counts
// and the difference is reported.
func TestServicesThatDifferByCluster(t *testing.T) {
	alias := Object("Service", "a", "x", &registryv1.Service{ExternalName: "y.com"})
	headless := Object("Service", "a", "x", &registryv1.Service{Headless: true, Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}}})
	for _, test := range []struct {
		name           string
		first, second  Change
		want           string // endpoints
		alias, problem string
	}{
		{"alias wins", alias, Service("a", "x", "80 http"), "", "y.com", "x (spec.externalName): conflict"},
		{"alias loses", Service("a", "x", "80 http"), alias, "10.0.1.1:8080", "", "x (spec.externalName): conflict"},
		{"headless loses", Service("a", "x", "80 http"), headless, "10.0.1.1:8080 10.0.2.1:8080", "", "x (spec.clusterIP): conflict"},
	} {
		in := func(cluster string, c Change) Change { return c.From("kubernetes").In(cluster) }
		pc := PushContext(t,
			in("one", test.first), in("one", Slice("a", "x", "8080 http", "10.0.1.1")),
			in("two", test.second), in("two", Slice("a", "x", "8080 http", "10.0.2.1")),
		)
		id := index.ServiceID{Namespace: "a", Hostname: "x.a.svc.cluster.local"}
		s := pc.Read().Service(id)
		if got := addresses(pc, id, 80); got != test.want || s.AliasOf != test.alias || s.Headless {
			t.Errorf("%s: endpoints %q, want %q; %+v", test.name, got, test.want, s)
		}
		expectProblems(t, pc, test.problem)
	}
}
