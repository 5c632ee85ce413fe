package gateway_test

import (
	"slices"
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// Of a server's and a VirtualService's host the narrower one is served, if the
// server allows the VirtualService's namespace (GW-6).
func TestIntersect(t *testing.T) {
	s := gateway.Server{Hosts: []gateway.Host{
		{Name: "*.example.com"}, {Namespace: "shop", Name: "one.shop.com"}, {Namespace: "shop", Name: "two.shop.com"},
	}}
	for _, test := range []struct {
		namespace   string
		hosts, want []string
	}{
		{"any", []string{"www.example.com", "WWW.example.com", "example.com", "www.example.org"}, []string{"www.example.com"}},
		{"any", []string{"*.www.example.com"}, []string{"*.www.example.com"}},
		{"any", []string{"*.example.com"}, []string{"*.example.com"}},
		{"any", []string{"*"}, []string{"*.example.com"}},
		{"shop", []string{"*.shop.com"}, []string{"one.shop.com", "two.shop.com"}},
		{"other", []string{"one.shop.com"}, nil},
	} {
		if got := s.Intersect(test.namespace, test.hosts); !slices.Equal(got, test.want) {
			t.Errorf("%s %v: got %v, want %v", test.namespace, test.hosts, got, test.want)
		}
	}
}

// The older Gateway wins, whatever its selector. A server that conflicts is left
// out, and no plain server replaces a server with TLS (GW-2).
func TestPorts(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: young, namespace: edge, creationTimestamp: "2026-02-01T00:00:00Z"}
spec:
  selector: {a: "1"}
  servers:
  - {port: {number: 80, name: tcp, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 443, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 90, name: tls, protocol: TCP}, tls: {mode: SIMPLE, credentialName: c}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: old, namespace: edge, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  selector: {b: "1"}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["./a.example", "b/b.example", "*/c.example"]}
  - {port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: c}, hosts: ["*"]}
`)...)
	p := &proxy.Proxy{Type: proxy.Router, Labels: map[string]string{"a": "1", "b": "1"}}
	ports, problems := gateway.Ports(pc.Read(), index.Classify(pc, p).LDS.Gateways, "")
	if len(ports) != 3 || ports[0].Bind != "0.0.0.0" || ports[0].Number != 80 || ports[0].Routes() != "http.80" || len(ports[0].Servers) != 1 {
		t.Fatalf("got %+v", ports)
	}
	want := []gateway.Host{{Namespace: "edge", Name: "a.example"}, {Namespace: "b", Name: "b.example"}, {Name: "c.example"}}
	if got := ports[0].Servers[0]; got.Gateway != "edge/old" || !slices.Equal(got.Hosts, want) {
		t.Errorf("got %+v", got)
	}
	if s := ports[1].Servers[0]; ports[1].Number != 90 || ports[1].Form != gateway.ServerNames || s.TLS == nil || s.Routes != "" {
		t.Errorf("got %+v", ports[1])
	}
	if s := ports[2].Servers[0]; ports[2].Number != 443 || s.TLS == nil || s.Routes != "https.443.https.old.edge" {
		t.Errorf("got %+v", ports[2])
	}
	var fields []string
	for _, p := range problems {
		d := p.(piece.Problem)
		fields = append(fields, d.Key.Name+" "+d.Field)
	}
	if want := []string{"young spec.servers[0].port", "young spec.servers[1].port"}; !slices.Equal(fields, want) {
		t.Errorf("problems: got %v, want %v", fields, want)
	}
}

// A Service with a selector of its own is in front of a Gateway if Pods behind it
// are the Gateway's; where it sends a port to another one, nothing listens (GW-3).
func TestFrontByPods(t *testing.T) {
	objects := meshtest.YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: edge}
spec: {clusterIP: 10.96.0.1, selector: {app: gw}, ports: [{name: http, port: 80, targetPort: web}]}
`)
	// The endpoints of one Service concern no part of another one.
	objects = append(objects, meshtest.YAML(t, `apiVersion: v1
kind: Service
metadata: {name: app, namespace: edge}
spec: {clusterIP: 10.96.0.2, selector: {app: other}, ports: [{name: http, port: 80, targetPort: 8080}]}
`)...)
	for _, test := range []struct {
		labels map[string]string
		port   uint32
		want   int
	}{
		{map[string]string{"app": "gw", "istio": "ingressgateway"}, 8080, 1},
		{map[string]string{"app": "gw", "istio": "ingressgateway"}, 80, 0},
		{map[string]string{"app": "gw"}, 8080, 0},
	} {
		pc := meshtest.PushContext(t, append(objects, meshtest.Object("EndpointSlice", "edge", "front-1", &registryv1.Endpoints{
			Service: "front", Ports: []*registryv1.EndpointPort{{Name: "http", Number: test.port}},
			Endpoints: []*registryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Labels: test.labels}},
		}))...)
		r := pc.Read()
		ports, _ := gateway.Ports(r, index.SelectorSet(`istio="ingressgateway"`), "")
		var found []problem.Diagnostic
		for _, p := range gateway.Fronts(r, index.SelectorSet(`istio="ingressgateway"`), index.Scope{}, ports) {
			alone := pc.Read()
			_, ds := p.Make(alone)
			found = append(found, ds...)
			if n := countEndpoints(alone.Inputs()); n > 1 {
				t.Errorf("%+v reads the endpoints of %d services", p, n)
			}
		}
		if len(found) != test.want || test.want == 1 && (found[0].Key.Name != "g" || found[0].Field != "spec.servers[0].port.number") {
			t.Errorf("%v at %d: got %+v", test.labels, test.port, found)
		}
	}
}

func countEndpoints(inputs []index.Input) (n int) {
	for _, in := range inputs {
		if in.Kind == index.InputEndpoints {
			n++
		}
	}
	return n
}

// Requests are redirected to HTTPS without a warning if a server opens HTTPS for each
// host (GW-8). A server whose hosts all belong to others is left out: without hosts it
// would have every name (GW-10).
func TestRedirectAndTaken(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: edge}
spec:
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example.com], tls: {httpsRedirect: true}}
  - {port: {number: 81, name: other, protocol: HTTP}, hosts: [a.example.com, b.example.org], tls: {httpsRedirect: true}}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["x/*.example.com", "y/*.example.com"], tls: {mode: SIMPLE, credentialName: c}}
  - {port: {number: 443, name: twice, protocol: HTTPS}, hosts: ["*.example.com"], tls: {mode: SIMPLE, credentialName: d}}
`)...)
	p := gateway.Find(pc.Read(), "*", "", "0.0.0.0", 443)
	if len(p.Servers) != 1 || len(p.Servers[0].Hosts) != 2 {
		t.Errorf("got %+v", p.Servers)
	}
	_, problems := gateway.Ports(pc.Read(), "*", "")
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.(piece.Problem).Field)
	}
	if want := []string{"spec.servers[3].hosts", "spec.servers[1].tls.httpsRedirect"}; !slices.Equal(fields, want) {
		t.Errorf("problems: got %v, want %v", fields, want)
	}
}

// A wildcard does not answer for hosts of a server that verifies clients, unless it has a
// more specific host itself (MTLS-15).
func TestGuarded(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: edge}
spec:
  servers:
  - {port: {number: 443, name: wild, protocol: HTTPS}, hosts: ["*.example.com", open.admin.example.com], tls: {mode: SIMPLE, credentialName: c}}
  - {port: {number: 443, name: admin, protocol: HTTPS}, hosts: ["*.admin.example.com", elsewhere.example.org], tls: {mode: MUTUAL, credentialName: c}}
  - {port: {number: 443, name: plain, protocol: HTTPS}, hosts: [plain.example.com], tls: {mode: SIMPLE, credentialName: c}}
`)...)
	p := gateway.Find(pc.Read(), "*", "", "0.0.0.0", 443)
	guarded := p.Guarded(0)
	if want := []string{"*.admin.example.com"}; !slices.Equal(guarded, want) {
		t.Errorf("got %v, want %v", guarded, want)
	}
	if got := p.Guarded(1); len(got) > 0 {
		t.Errorf("got %v from a server that verifies clients", got)
	}
	for host, want := range map[string]bool{
		"a.example.com": false, "a.admin.example.com": true, "*.admin.example.com": true, "*.example.com": false,
		"open.admin.example.com": false, "plain.example.com": false,
	} {
		if got := p.Servers[0].Guards(guarded, host); got != want {
			t.Errorf("%s: got %v, want %v", host, got, want)
		}
	}
}
