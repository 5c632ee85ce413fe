package kube

import (
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"

	networking "istio.io/api/networking/v1alpha3"
)

const (
	virtualServices = "virtualservices.networking.istio.io"
	serviceEntries  = "serviceentries.networking.istio.io"
)

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: eu-1}}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  selector: {app: cart}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop, labels: {app: cart, version: v1}}
spec: {nodeName: n1, containers: [{name: cart, image: cart}]}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], nodeName: n1, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: cart-1}}
`

const route = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart], http: [{timeout: 3s, route: [{destination: {host: cart}}]}]}
`

func TestLive(t *testing.T) {
	s := server(t, virtualServices)
	must(t, s.Apply(t.Context(), shop, route))
	w, _ := observe(t, s.Config())
	w.lists("Service", "EndpointSlice", "Pod", "Node", "Namespace", "VirtualService", "Ingress", "Secret")
	o, m := w.get("EndpointSlice shop/cart-1")
	e := m.(*registryv1.Endpoints).GetEndpoints()[0]
	if e.GetLabels()["version"] != "v1" || e.GetLocality().GetZone() != "eu-1" {
		t.Errorf("the endpoint is %v", e)
	}
	if o.Actor != "kubetest" || o.Origin == "" || o.Created.IsZero() || o.SourceVersion == "" {
		t.Errorf("the slice is %+v", o)
	}
	if o, m = w.get("VirtualService shop/cart"); m.(*networking.VirtualService).GetHttp()[0].GetTimeout().GetSeconds() != 3 {
		t.Errorf("the route is %v of %+v", m, o)
	}
	t.Log(w.problems)
}
