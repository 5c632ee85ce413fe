package index_test

import (
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
)

const shared = "reviews.prod.svc.cluster.local"

// registered is a Service of a registry, on port 80, with one endpoint.
func registered(source, instance, namespace, host, ip string) []Change {
	return []Change{
		Object("Service", namespace, "s", &registryv1.Service{
			Hostname: host, Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}},
		}).From(source).In(instance),
		Object("EndpointSlice", namespace, "s#", &registryv1.Endpoints{
			Service: "s", Ports: []*registryv1.EndpointPort{{Name: "http", Number: 8080}},
			Endpoints: []*registryv1.Endpoint{{Addresses: []string{ip}}},
		}).From(source).In(instance),
	}
}

func entryIn(source, namespace, host, ip string, resolution networking.ServiceEntry_Resolution) Change {
	return Object("ServiceEntry", namespace, "of-"+source, &networking.ServiceEntry{
		Hosts: []string{host}, Resolution: resolution, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networking.WorkloadEntry{{Address: ip}},
	}).From(source)
}

func mesh(t *testing.T, sets ...[]Change) *index.PushContext {
	t.Helper()
	var all []Change
	for _, set := range sets {
		all = append(all, set...)
	}
	return PushContext(t, all...)
}

// seenBy returns the namespace of the service that each namespace sees under a
// host.
func seenBy(pc *index.PushContext, host string, namespaces ...string) string {
	var seen []string
	for _, ns := range namespaces {
		s := pc.Read().ServiceByHost(pc.Scope(ns), host)
		if s == nil {
			seen = append(seen, ns+":-")
			continue
		}
		seen = append(seen, ns+":"+s.Namespace)
	}
	return strings.Join(seen, " ")
}

func TestAGG1KubernetesServicesAreFirst(t *testing.T) {
	late := time.Unix(9, 0)
	for name, source := range map[string]string{"of a cluster": "kubernetes", "of a file": "file", "of an operator": "api"} {
		t.Run(name, func(t *testing.T) {
			pc := mesh(t, []Change{Service("prod", "reviews", "80 http").From(source).At(late)}, registered("consul", "dc1", "prod", shared, "10.0.0.1"))
			s := pc.Read().ServiceByHost(commonView, shared)
			if !s.Kubernetes || s.Key.Source != source {
				t.Errorf("the host belongs to %s", s.Key)
			}
			if got := addresses(pc, s.ServiceID, 80); got != "" {
				t.Errorf("a registry added the endpoints %s", got)
			}
			expectProblems(t, pc, "s (hostname): conflict")
		})
	}
}

func TestAGG1PriorityWhateverTheKind(t *testing.T) {
	static := networking.ServiceEntry_STATIC
	t.Run("a ServiceEntry of a file beats a Service of Consul", func(t *testing.T) {
		pc := mesh(t, []Change{entryIn("file", "prod", "shop.example", "10.0.0.1", static)}, registered("consul", "dc1", "prod", "shop.example", "10.0.0.2"))
		s := pc.Read().ServiceByHost(commonView, "shop.example")
		if s.Key.Source != "file" || addresses(pc, s.ServiceID, 80) != "10.0.0.1:80" {
			t.Errorf("%s has the endpoints %s", s.Key, addresses(pc, s.ServiceID, 80))
		}
		expectProblems(t, pc, "s (hostname): conflict")
	})
	t.Run("Consul beats Nacos", func(t *testing.T) {
		pc := mesh(t, registered("nacos", "public", "prod", "shop.example", "10.0.0.1"), registered("consul", "dc1", "prod", "shop.example", "10.0.0.2"))
		s := pc.Read().ServiceByHost(commonView, "shop.example")
		if s.Key.Source != "consul" || s.Kubernetes || addresses(pc, s.ServiceID, 80) != "10.0.0.2:8080" {
			t.Errorf("%s has the endpoints %s", s.Key, addresses(pc, s.ServiceID, 80))
		}
		expectProblems(t, pc, "s (hostname): conflict")
	})
}

// A client of a registry that takes the name of a Service gets no requests, not
// even those of its own namespace, and Istio's union of endpoints is not made (AGG-5).
func TestAGG2LosersLoseWhole(t *testing.T) {
	t.Run("a registry in a namespace of its own", func(t *testing.T) {
		pc := mesh(t, []Change{Service("prod", "reviews", "80 http"), Slice("prod", "reviews", "80 http", "10.0.0.1")}, registered("nacos", "public", "public", shared, "10.6.6.6"))
		if got := seenBy(pc, shared, "prod", "public", "elsewhere"); got != "prod:prod public:prod elsewhere:prod" {
			t.Error(got)
		}
		expectProblems(t, pc, "s (hostname): conflict")
	})
	t.Run("exported to its own namespace only", func(t *testing.T) {
		taken := Object("ServiceEntry", "public", "e", &networking.ServiceEntry{Hosts: []string{shared}, ExportTo: []string{"."}}).From("mcpxds")
		pc := mesh(t, []Change{Service("prod", "reviews", "80 http"), taken})
		if got := seenBy(pc, shared, "public"); got != "public:prod" {
			t.Error(got)
		}
		expectProblems(t, pc, "e (spec.hosts): conflict")
	})
	t.Run("where the winner is not seen the other is", func(t *testing.T) {
		private := Object("ServiceEntry", "prod", "e", &networking.ServiceEntry{Hosts: []string{"shop.example"}, ExportTo: []string{"."}})
		pc := mesh(t, []Change{private}, registered("nacos", "public", "public", "shop.example", "10.0.0.1"))
		if got := seenBy(pc, "shop.example", "prod", "public", "elsewhere"); got != "prod:prod public:public elsewhere:public" {
			t.Error(got)
		}
	})
	t.Run("two registries in one namespace do not join", func(t *testing.T) { // AGG-5: in Istio they do
		pc := mesh(t, registered("consul", "dc1", "prod", "shop.example", "10.0.0.1"), registered("nacos", "public", "prod", "shop.example", "10.6.6.6"))
		if got := addresses(pc, index.ServiceID{Namespace: "prod", Hostname: "shop.example"}, 80); got != "10.0.0.1:8080" {
			t.Errorf("endpoints %s", got)
		}
		expectProblems(t, pc, "s (hostname): conflict")
	})
	t.Run("entries of two sources do not join", func(t *testing.T) {
		static := networking.ServiceEntry_STATIC
		pc := mesh(t, []Change{entryIn("file", "prod", "shop.example", "10.0.0.1", static), entryIn("mcpxds", "prod", "shop.example", "10.6.6.6", static).In("other")})
		if got := addresses(pc, index.ServiceID{Namespace: "prod", Hostname: "shop.example"}, 80); got != "10.0.0.1:80" {
			t.Errorf("endpoints %s", got)
		}
		expectProblems(t, pc, "of-mcpxds (spec.hosts): conflict")
	})
}

// A host's owner decides who joins it: its selector, also a ServiceEntry's, chooses
// workloads of its namespace from all sources. What claims a host is forbidden to others,
// what is chosen is not: sourceRules keep a source out of a namespace.
func TestAGG2SelectorsChooseFromAllSources(t *testing.T) {
	machine := func(source, namespace, ip string) Change {
		return Object("WorkloadEntry", namespace, "vm-"+source, &networking.WorkloadEntry{Address: ip, Labels: map[string]string{"app": "shop"}}).From(source)
	}
	selecting := Object("ServiceEntry", "prod", "shop", &networking.ServiceEntry{
		Hosts: []string{"shop.example"}, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "shop"}},
	}).From("file")
	pc := mesh(t, []Change{selecting, machine("file", "prod", "10.0.0.1"), machine("mcpxds", "prod", "10.0.0.2"), machine("kubernetes", "elsewhere", "10.6.6.6")})
	if got := addresses(pc, index.ServiceID{Namespace: "prod", Hostname: "shop.example"}, 80); got != "10.0.0.1:80 10.0.0.2:80" {
		t.Errorf("endpoints %s", got)
	}
	expectProblems(t, pc, "vm-kubernetes (spec.labels): unused")
}

func TestAGG3DatacentersJoin(t *testing.T) {
	pc := mesh(t, registered("consul", "dc1", "consul", "web.service.consul", "10.0.0.1"), registered("consul", "dc2", "consul", "web.service.consul", "10.0.0.2"))
	if got := addresses(pc, index.ServiceID{Namespace: "consul", Hostname: "web.service.consul"}, 80); got != "10.0.0.1:8080 10.0.0.2:8080" {
		t.Errorf("endpoints %s", got)
	}
	expectProblems(t, pc)
}

// REG-5: two names that give one host are not one service.
func TestREG5OneHostOfTwoNames(t *testing.T) {
	id := index.ServiceID{Namespace: "consul", Hostname: "a-b.service.consul"}
	other := Object("Service", id.Namespace, "z", &registryv1.Service{Hostname: id.Hostname, Ports: []*registryv1.ServicePort{{Number: 80, Name: "http"}}})
	pc := mesh(t, registered("consul", "dc1", id.Namespace, id.Hostname, "10.0.0.1"), []Change{other.From("consul").In("dc1")})
	if got := addresses(pc, id, 80); got != "10.0.0.1:8080" {
		t.Errorf("endpoints %s", got)
	}
	expectProblems(t, pc, "z (hostname): conflict")
}

func TestAGG4MergeHosts(t *testing.T) {
	policy := func(hosts string) Change {
		return Object("MeshPolicy", "", "default", &configv1.MeshPolicy{MergeHosts: []*configv1.MergeHosts{{Hosts: []string{hosts}, Sources: []string{"consul", "nacos", "file"}}}})
	}
	id := index.ServiceID{Namespace: "prod", Hostname: "web.shop.example"}
	consul, nacos := registered("consul", "dc1", "prod", id.Hostname, "10.0.0.1"), registered("nacos", "public", "prod", id.Hostname, "10.0.0.2")
	for name, c := range map[string]struct {
		objects  []Change
		want     string
		problems []string
	}{
		"two registries": {append(consul, policy("*.shop.example")), "10.0.0.1:8080 10.0.0.2:8080", nil},
		"another host":   {append(consul, policy("*.other.example")), "10.0.0.1:8080", []string{"s (hostname): conflict"}},
		"an entry with addresses": {
			[]Change{entryIn("file", "prod", id.Hostname, "10.0.0.3", networking.ServiceEntry_STATIC), policy("web.*")}, "10.0.0.2:8080 10.0.0.3:80", nil,
		},
		"an entry with names": {
			[]Change{entryIn("file", "prod", id.Hostname, "a.example", networking.ServiceEntry_DNS), policy("web.*")}, "a.example:80", []string{"s (hostname): conflict"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pc := mesh(t, c.objects, nacos)
			if got := addresses(pc, id, 80); got != c.want {
				t.Errorf("endpoints %s, want %s", got, c.want)
			}
			expectProblems(t, pc, c.problems...)
		})
	}
}

func TestREG2PortsOfEndpoints(t *testing.T) {
	ports := []*registryv1.ServicePort{{Number: 80, Name: "http"}, {Number: 90, Name: "grpc"}}
	pc := PushContext(t,
		Object("Service", "a", "s", &registryv1.Service{Hostname: "s.consul", Ports: ports}).From("consul"),
		Object("EndpointSlice", "a", "s#", &registryv1.Endpoints{
			Service: "s", Ports: []*registryv1.EndpointPort{{Name: "http", Number: 7000}},
			Endpoints: []*registryv1.Endpoint{
				{Addresses: []string{"10.0.0.1"}, Ports: map[string]uint32{"": 8001}},
				{Addresses: []string{"10.0.0.2"}, Ports: map[string]uint32{"http": 8002, "grpc": 9002}},
				{Addresses: []string{"10.0.0.3"}},
			},
		}).From("consul"),
	)
	id := index.ServiceID{Namespace: "a", Hostname: "s.consul"}
	if got := addresses(pc, id, 80); got != "10.0.0.1:8001 10.0.0.2:8002 10.0.0.3:7000" {
		t.Errorf("port 80: %s", got)
	}
	if got := addresses(pc, id, 90); got != "10.0.0.1:8001 10.0.0.2:9002" {
		t.Errorf("port 90: %s", got)
	}
}
