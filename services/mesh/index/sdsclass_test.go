package index_test

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// Only a router that has shown an identity of the mesh is served the secrets of its
// Gateways, which are those of its own namespace; another one is told which files these name
// (SDS-4, SDS-14). The roots are for all Envoys that have: agents ask for them (CA-10).
func TestSecretsOfClass(t *testing.T) {
	gateway := Object("Gateway", "edge", "gw", &networking.Gateway{Selector: map[string]string{"app": "edge"}})
	mesh := Object("MeshConfig", "", "default", &meshconfig.MeshConfig{TrustDomain: "td1", TrustDomainAliases: []string{"old"}})
	router := proxy.Proxy{Type: proxy.Router, Namespace: "edge", Labels: map[string]string{"app": "edge"}}
	identity := func(domain string) proxy.Identity {
		return proxy.Identity{TrustDomain: domain, Namespace: "edge", ServiceAccount: "edge"}
	}
	for _, test := range []struct {
		name   string
		change func(*proxy.Proxy)
		want   bool
		roots  bool
	}{
		{"of the mesh", func(p *proxy.Proxy) { p.Identity = identity("td1") }, true, true},
		{"of an alias", func(p *proxy.Proxy) { p.Identity = identity("old") }, true, true},
		{"none", func(*proxy.Proxy) {}, false, false},
		{"of another trust domain", func(p *proxy.Proxy) { p.Identity = identity("cluster.local") }, false, false},
		{"a sidecar", func(p *proxy.Proxy) { p.Identity, p.Type = identity("td1"), proxy.Sidecar }, false, true},
		{"a gRPC client", func(p *proxy.Proxy) { p.Identity, p.GRPC = identity("td1"), true }, false, false},
		{"without the Gateway's labels", func(p *proxy.Proxy) { p.Identity, p.Labels = identity("td1"), nil }, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := router
			test.change(&p)
			pc := PushContext(t, gateway, mesh)
			if got := index.Classify(pc, &p).SDS; (got.Gateways != "" && got.Namespace == "edge") != test.want || got.Roots != test.roots {
				t.Errorf("the class of its secrets is %+v", got)
			}
		})
	}
	// SDS-5: nothing else of a proxy is in the class, so they share the bytes of secrets.
	one, another := router, router
	one.Identity, another.Identity = identity("td1"), identity("td1")
	another.ID, another.Labels = "edge-2", map[string]string{"app": "edge", "pod-template-hash": "7"}
	another.Identity.ServiceAccount = "other"
	pc := PushContext(t, gateway, mesh)
	if a, b := index.Classify(pc, &one).SDS, index.Classify(pc, &another).SDS; a != b {
		t.Errorf("two routers of a Gateway have the classes %+v and %+v", a, b)
	}
	// A change of the trust domain reaches proxies that are connected.
	before := PushContext(t, gateway, mesh)
	other := Object("MeshConfig", "", "default", &meshconfig.MeshConfig{TrustDomain: "td2"})
	after, _ := before.Next(World(t, gateway, other), nil)
	p := router
	p.Identity = identity("td1")
	if got := index.Classify(after, &p).SDS; got.Namespace != "" || got.Roots || before.SameClasses(after) {
		t.Errorf("after another trust domain the class is %+v", got)
	}
}
