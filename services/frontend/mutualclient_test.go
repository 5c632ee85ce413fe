package frontend_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/meshtest"
)

// entry publishes a ServiceEntry NAME.example with one port, which the client then calls in
// place of web's port of the same name.
func (p *peers) entry(name, port, endpoints string) {
	p.Helper()
	number := freePort(p.T)
	v := p.mesh.Publish(meshtest.YAML(p.T, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec:
  hosts: [%[1]s.example]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: [client]
  ports: [{number: %d, name: %s, protocol: %q}]
  endpoints: %s
`, name, number, port, peerPorts[port].protocol, endpoints))...)
	p.applied(v)
	p.listens[port], p.host = number, name+".example"
}

// at is web's endpoint for a port.
func (p *peers) at(port, more string) string {
	return fmt.Sprintf("{address: 127.0.0.2, ports: {%s: %d}, %s}", port, p.targets[port], more)
}

// MTLS-8: a client refuses a server with another account than those behind the service, and
// sends it nothing in plain text, although its port is PERMISSIVE.
func TestOtherAccount(t *testing.T) {
	for _, port := range []string{"http", "auto", "tcp", "auto-tcp"} {
		t.Run(port, func(t *testing.T) {
			p := newPeers(t)
			p.entry("other", port, "["+p.at(port, "serviceAccount: other")+"]")
			if got := p.outcome(way{}, port); got != closed {
				t.Errorf("a server with another account: %s", got)
			}
			if arrives, way := p.follows(port); arrives || !strings.Contains(way, "refuses the certificate of "+webIdentity) {
				t.Errorf("the simulated call to a server with another account arrives: %v\n%s", arrives, way)
			}
			p.entry("right", port, "["+p.at(port, "serviceAccount: web")+"]")
			if got := p.outcome(way{}, port); got != as && got != arrives {
				t.Errorf("a server with the account: %s", got)
			}
		})
	}
}

// DR-19: of one service endpoints that speak mutual TLS are called in it, and others in plain
// text.
func TestMixedEndpoints(t *testing.T) {
	p := newPeers(t)
	without := fmt.Sprintf("{address: 127.0.0.1, ports: {auto: %d}, serviceAccount: web, labels: {security.istio.io/tlsMode: disabled}}", p.targets["auto"])
	p.entry("without", "auto", "["+p.at("auto", "serviceAccount: web, labels: {security.istio.io/tlsMode: disabled}")+", "+without+"]")
	for range 4 {
		if got := p.outcome(way{}, "auto"); got != plain {
			t.Errorf("endpoints without mutual TLS: %s", got)
		}
	}
	p.entry("both", "auto", "["+p.at("auto", "serviceAccount: web")+", "+without+"]")
	var got []string
	for range 10 {
		got = append(got, p.outcome(way{}, "auto"))
	}
	if slices.Sort(got); !slices.Equal(slices.Compact(got), []string{as, plain}) {
		t.Errorf("with and without mutual TLS: %q", got)
	}
}

// MTLS-16: a client without a certificate sends plain text where the server takes it, and
// nothing where the server, or a DestinationRule, demands mutual TLS.
func TestClientWithoutCertificate(t *testing.T) {
	p := newPeers(t)
	runEnvoy(t, strings.Replace(fmt.Sprintf(staticClusters, "DELTA_GRPC", "  cds_config: {ads: {}, resource_api_version: V3}\n", p.xds),
		"{id: static, cluster: static}", "{id: sidecar~127.0.0.5~bare-1.bare~bare.svc.cluster.local, cluster: bare, metadata: {INTERCEPTION_MODE: NONE, INSTANCE_IPS: 127.0.0.5}}", 1))
	publish := func(document string) {
		t.Helper()
		p.appliedBy(p.mesh.Publish(meshtest.YAML(t, document)...), 3)
	}
	for _, port := range []string{"http", "auto", "tcp"} {
		number := freePort(t)
		publish(fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bare-%s, namespace: shop}
spec:
  hosts: [bare-%[1]s.example]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: [bare]
  ports: [{number: %d, name: %[1]s, protocol: %[3]q}]
  endpoints: [%[4]s]
`, port, number, peerPorts[port].protocol, p.at(port, "serviceAccount: web")))
		p.listens[port], p.host = number, "bare-"+port+".example"
		mode := func(mode, want string) {
			t.Helper()
			publish(fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: shop}, spec: {mtls: {mode: %s}}}", mode))
			if got := p.outcome(way{}, port); got != want {
				t.Errorf("%s to %s: %s, want %s", mode, port, got, want)
			}
		}
		open := plain
		if port == "tcp" {
			open = arrives
		}
		mode("PERMISSIVE", open)
		mode("STRICT", closed)
		mode("DISABLE", open)
		publish(fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: %s, namespace: shop}, spec: {host: bare-%[1]s.example, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}}", port))
		if got := p.outcome(way{}, port); got != closed {
			t.Errorf("ISTIO_MUTUAL to %s: %s", port, got)
		}
	}
}

// S31, MTLS-7: a request from a port whose protocol is detected to a server outside of the
// mesh offers what the cluster says by ALPN, and not the names of the mesh.
func TestOtherTLSKeepsALPN(t *testing.T) {
	p := newPeers(t)
	var mu sync.Mutex
	var offered [][]string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Proto) // the client looks at it
	}))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		offered = append(offered, h.SupportedProtos)
		return nil, nil
	}}
	s.StartTLS()
	t.Cleanup(s.Close)
	p.applied(p.mesh.Publish(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: client}
spec:
  hosts: [outside.example]
  resolution: STATIC
  ports: [{number: %d, name: grpc, protocol: HTTP2, targetPort: %d}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: client}
spec: {host: outside.example, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: client}
spec:
  hosts: [web.example]
  http:
  - match: [{port: %d}]
    route: [{destination: {host: outside.example}}]
  - route: [{destination: {host: web.example}}]
`, freePort(t), s.Listener.Addr().(*net.TCPAddr).Port, p.listens["auto"]))...))
	if got, err := p.call(way{}, "auto"); err != nil || got != "HTTP/2.0" {
		t.Errorf("the server outside of the mesh: %q, %v", got, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(offered) == 0 || !slices.Equal(offered[0], []string{"h2"}) {
		t.Errorf("the client offers %q, want h2", offered)
	}
}

// GW-11, NET-2: a client of one network calls a server of another one through a gateway that
// decrypts nothing, and the server knows the client.
func TestBetweenNetworks(t *testing.T) {
	p := newPeers(t)
	gate := freePort(t)
	v := p.mesh.Publish(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshNetworks
metadata: {name: default}
spec:
  networks:
    one: {endpoints: [{fromCidr: 127.0.0.3/32}]}
    two: {endpoints: [{fromCidr: 127.0.0.2/32}, {fromCidr: 127.0.0.4/32}], gateways: [{address: 127.0.0.4, port: %d}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gate, namespace: edge}
spec:
  servers:
  - {port: {number: %[1]d, name: tls, protocol: TLS}, bind: 127.0.0.4, hosts: ["*.example"], tls: {mode: AUTO_PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  exportTo: [client, edge]
  ports: [%s]
  endpoints: [{address: 127.0.0.2, serviceAccount: web, ports: {%s}}]
`, gate, p.ports, p.target))...)
	p.applied(v)
	for _, port := range []string{"http", "auto", "tcp"} {
		if got := p.outcome(way{}, port); got != closed {
			t.Errorf("without the gateway, %s is %s", port, got)
		}
	}
	dead := runEnvoy(t, strings.Replace(fmt.Sprintf(staticClusters, "DELTA_GRPC", "  cds_config: {ads: {}, resource_api_version: V3}\n", p.xds),
		"{id: static, cluster: static}", "{id: router~127.0.0.4~gate-1.edge~edge.svc.cluster.local, cluster: gate, metadata: {INSTANCE_IPS: 127.0.0.4}}", 1))
	p.appliedBy(v, 3)
	for _, w := range []way{{name: "HTTP/1"}, {name: "h2", h2: true}} {
		for _, port := range []string{"http", "auto"} {
			if got := p.outcome(w, port); got != as {
				t.Errorf("%s to %s through the gateway: %s", w.name, port, got)
			}
		}
	}
	for _, port := range []string{"tcp", "auto-tcp"} {
		if got := p.outcome(way{}, port); got != arrives {
			t.Errorf("%s through the gateway: %s", port, got)
		}
	}
	dead.Kill()
	if got := p.outcome(way{}, "tcp"); got != closed {
		t.Errorf("after the gateway is gone: %s", got)
	}
}

// SVC-14: a client also accepts the service accounts that annotations of a Service name, and
// names in full, although its endpoint has another account.
func TestAnnotatedAccounts(t *testing.T) {
	p := newPeers(t)
	number := freePort(t)
	p.listens["http"], p.host = number, "noted.shop.svc.cluster.local"
	slice := meshtest.Object("EndpointSlice", "shop", "noted", &registryv1.Endpoints{
		Service: "noted", Ports: []*registryv1.EndpointPort{{Name: "http", Number: uint32(p.targets["http"])}},
		Endpoints: []*registryv1.Endpoint{{Addresses: []string{"127.0.0.2"}, ServiceAccount: "other", MutualTls: true}},
	})
	for _, c := range []struct{ annotation, want string }{
		{"", closed},
		{`alpha.istio.io/kubernetes-serviceaccounts: "none,web"`, as},
		{`alpha.istio.io/kubernetes-serviceaccounts: none`, closed},
		{"alpha.istio.io/canonical-serviceaccounts: " + webIdentity, as},
		{"alpha.istio.io/canonical-serviceaccounts: spiffe://cluster.local/ns/other/sa/web", closed},
	} {
		p.applied(p.mesh.Publish(append(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: noted, namespace: shop, annotations: {networking.istio.io/exportTo: client, %s}}
spec: {clusterIP: 10.9.0.1, ports: [{name: http, port: %d}]}
`, c.annotation, number)), slice)...))
		if got := p.outcome(way{}, "http"); got != c.want {
			t.Errorf("with %q: %s, want %s", c.annotation, got, c.want)
		}
		if arrives, way := p.follows("http"); arrives != (c.want == as) {
			t.Errorf("with %q the simulated call arrives: %v\n%s", c.annotation, arrives, way)
		}
	}
}
