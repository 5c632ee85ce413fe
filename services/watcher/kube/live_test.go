package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/deploy/testkit/kubetest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

const (
	virtualServices = "virtualservices.networking.istio.io"
	serviceEntries  = "serviceentries.networking.istio.io"
)

const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {mesh: "on"}}
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

func serviceEntry(name string) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec: {hosts: [%s.example.com], ports: [{number: 80, name: http}], resolution: DNS}
`, name, name)
}

// TestServer runs the tests that can share a server. Each restores the shop.
func TestServer(t *testing.T) {
	s := kubetest.Start(t)
	must(t, s.InstallIstioCRDs(t.Context(), virtualServices, serviceEntries))
	must(t, s.Apply(t.Context(), shop, route))
	for _, test := range []struct {
		name string
		run  func(*testing.T, *kubetest.Server)
	}{
		{"lists and reports changes", testChanges},
		{"a namespace is enough", testNamespaces},
		{"discovery selectors", testSelectors},
		{"settings of the mesh", testMeshConfig},
		{"unmirrored endpoints", testUnmirrored},
		{"one kind is forbidden", testForbidden},
		{"one kind fails", testFailing},
		{"the API server hangs", testHangs},
		{"secrets", testSecrets},
		{"keys", testKeys},
		{"keys while the API server is away", testKeysAway},
		{"keys without the right to read them", testKeysForbidden},
		{"logs have no keys", testQuietKeys},
		{"connections break", testCut},
		{"a watch hangs", testWatchHangs},
		{"an empty list after an error", testEmptyList},
		{"empty lists with errors between them", testEmptyLists},
		{"history is gone", testGone},
		{"history is gone while pages are read", testPages},
		{"rejected credentials", testAccess},
		{"renewed credentials", testRenewed},
		{"definitions are forbidden", testDefinitionsForbidden},
		{"clocks differ", testClocks},
		{"suite", testSuite},
		{"a definition is removed and installed", testDefinition},
		{"a definition is being removed", testDefinitionGoing},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

func testChanges(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	w, _ := observe(t, s.Config(), func(c *Config, _ *limits) { c.DomainSuffix = "east.local" })
	w.lists("Service", "EndpointSlice", "Pod", "Node", "Namespace", "VirtualService", "Ingress", "Secret")
	o, m := w.get("EndpointSlice shop/cart-1")
	if e := m.(*registryv1.Endpoints).GetEndpoints()[0]; e.GetLabels()["version"] != "v1" || e.GetLocality().GetZone() != "eu-1" {
		t.Errorf("the endpoint is %v", e)
	}
	if o.Actor != "kubetest" || o.Origin != "endpointslices.discovery.k8s.io/cart-1 -n shop" || o.Value.Created.IsZero() || o.SourceVersion == "" || o.Observed.IsZero() {
		t.Errorf("the slice is %+v", o)
	}
	if _, m = w.get("Service shop/cart"); m.(*registryv1.Service).GetDomainSuffix() != "east.local" {
		t.Errorf("the service is %v", m)
	}
	if _, m = w.get("VirtualService shop/cart"); m.(*networking.VirtualService).GetHttp()[0].GetTimeout().GetSeconds() != 3 {
		t.Errorf("the route is %v", m)
	}
	if d := w.says("kinds", "not-installed"); !strings.Contains(d.Reason, "DestinationRule") || strings.Contains(d.Reason, "VirtualService") {
		t.Errorf("not installed: %+v", d)
	}

	must(t, s.Apply(ctx, serviceEntry("a")))
	w.has("ServiceEntry shop/a")
	must(t, s.ApplyAs(ctx, "zoe", strings.ReplaceAll(serviceEntry("a"), "DNS", "NONE")))
	w.until("the change of zoe", func() bool { return w.objects["ServiceEntry shop/a"].Actor == "zoe" })
	// Status and metadata are not changes. The last object shows that nothing was reported before it.
	must(t, s.ApplyAs(ctx, "annotator", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, annotations: {note: "1"}}}`))
	must(t, s.ApplyAs(ctx, "controller", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, status: {conditions: [{type: Seen, status: "True", reason: Seen, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`))
	must(t, s.ApplyAs(ctx, "owner", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{name: http, port: 80, targetPort: 8080}]}}`)) // the same spec: only managed fields change
	must(t, s.Apply(ctx, strings.ReplaceAll(shop, "version: v1", "version: v2")))
	w.until("the pod's label in its endpoint", func() bool {
		sets := slices.Concat(w.sets...)
		return slices.Contains(sets, "+EndpointSlice shop/cart-1") && slices.Contains(sets, "+Pod shop/cart-1")
	})
	if slices.Contains(slices.Concat(w.sets...), "+Service shop/cart") {
		t.Errorf("a change without an effect was reported: %v", w.sets)
	}
	must(t, s.ApplyAs(ctx, "zoe", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, annotations: {networking.istio.io/exportTo: "."}}}`))
	w.until("zoe's change of the Service", func() bool { return w.objects["Service shop/cart"].Actor == "zoe" })
	must(t, s.ApplyAs(ctx, "zoe", `{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}}`)) // removes what she applied
	must(t, s.Delete(ctx, serviceEntry("a")))
	w.lacks("ServiceEntry shop/a")
	must(t, s.Apply(ctx, shop))
	w.ran(1)
}

func may(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
}

func testNamespaces(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	other := strings.NewReplacer("shop", "other", "cart-1", "cart-2").Replace(shop)
	must(t, s.Apply(ctx, other))
	defer func() {
		must(t, s.Delete(context.WithoutCancel(ctx), other, shop), s.Apply(context.WithoutCancel(ctx), shop, route))
	}()
	w, _ := observe(t, s.Config(), func(c *Config, _ *limits) { c.Namespaces = []string{"shop", "empty"} })
	w.lists("Service", "EndpointSlice", "Pod", "VirtualService")
	w.has("Service shop/cart", "EndpointSlice shop/cart-1", "Pod shop/cart-1", "VirtualService shop/cart")
	for n := range w.objects {
		if strings.Contains(n, "other") || strings.Contains(n, " default/") {
			t.Errorf("%s was reported", n)
		}
	}
}

func testSelectors(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	on, err := labels.Parse("mesh=on")
	must(t, err)
	w, _ := observe(t, s.Config(), func(c *Config, _ *limits) { c.DiscoverySelectors = []labels.Selector{on} })
	w.lists("Service", "Namespace")
	w.has("Service shop/cart", "VirtualService shop/cart", "Namespace /shop")
	if _, ok := w.objects["Service default/kubernetes"]; ok {
		t.Error("an object of another namespace was reported")
	}
	must(t, s.Apply(ctx, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`))
	w.lacks("Service shop/cart", "VirtualService shop/cart", "Namespace /shop")
	if len(w.sets) != 1 {
		t.Errorf("a namespace left in %d changes: %v", len(w.sets), w.sets)
	}
	must(t, s.Apply(ctx, shop))
	w.has("Service shop/cart", "VirtualService shop/cart", "EndpointSlice shop/cart-1", "Namespace /shop")
}

func testMeshConfig(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	const settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: default}
data:
  mesh: |
    connectTimeout: 7s
`
	w, _ := observe(t, s.Config(), func(c *Config, _ *limits) {
		c.MeshConfigMap = types.NamespacedName{Namespace: "default", Name: "istio"}
	})
	w.lists("MeshConfig", "MeshNetworks")
	must(t, s.Apply(ctx, settings))
	if _, m := w.get("MeshConfig /default"); m.(*mesh.MeshConfig).GetConnectTimeout().GetSeconds() != 7 {
		t.Errorf("the settings are %v", m)
	}
	must(t, s.Apply(ctx, strings.ReplaceAll(settings, "mesh:", "meshNetworks:")))
	w.lacks("MeshConfig /default")
	must(t, s.Delete(ctx, settings))
	w.lacks("MeshNetworks /default")
}

func testUnmirrored(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	const (
		service   = `{apiVersion: v1, kind: Service, metadata: {name: old, namespace: shop}, spec: {ports: [{port: 80}]}}`
		endpoints = `{apiVersion: v1, kind: Endpoints, metadata: {name: old, namespace: shop}, subsets: [{addresses: [{ip: 10.9.9.9}], ports: [{port: 80}]}]}`
		slice     = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: old-1, namespace: shop, labels: {kubernetes.io/service-name: old}}, addressType: IPv4, endpoints: []}`
	)
	must(t, s.Apply(ctx, service, endpoints))
	w, _ := observe(t, s.Config())
	if d := w.says("endpoints", "unmirrored"); d.Key.Name != "old" || d.Advice == "" {
		t.Errorf("%+v", d)
	}
	must(t, s.Apply(ctx, slice))
	w.isWell("endpoints")
	must(t, s.Delete(ctx, service, endpoints, slice))
	w.lacks("Service shop/old", "EndpointSlice shop/old-1")
}

var allButPods = []rbacv1.PolicyRule{
	may("", "services", "nodes", "namespaces", "configmaps"), may("discovery.k8s.io", "endpointslices"),
	may("networking.k8s.io", "*"), may("networking.istio.io", "*"), may("apiextensions.k8s.io", "customresourcedefinitions"),
}

func testForbidden(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	as, err := s.User(ctx, "partly", allButPods...)
	must(t, err)
	p, err := s.Proxy(as)
	must(t, err)
	defer p.Close()
	w, stop := observe(t, p.Config())
	defer stop()
	w.lists("Service", "VirtualService", "Node")
	if w.kinds["Pod"] || w.kinds["EndpointSlice"] {
		t.Errorf("spoken of %v: without pods, endpoints would be others", w.kinds)
	}
	d := w.says("kind Pod", "forbidden")
	if !strings.Contains(d.Advice, `resources: ["pods"]`) {
		t.Errorf("%+v", d)
	}
	w.says("kind EndpointSlice", "needs")
	_, err = s.User(ctx, "partly", append(allButPods, may("", "pods"))...)
	must(t, err)
	w.lists("Pod", "EndpointSlice")
	w.isWell("kind Pod")
	w.isWell("kind EndpointSlice")
	// A watcher that loses a right again loses no objects.
	_, err = s.User(ctx, "partly", allButPods...)
	must(t, err)
	p.Cut()
	w.until("a listing without pods", func() bool { return !w.kinds["Pod"] && !w.kinds["EndpointSlice"] })
	w.says("kind Pod", "forbidden")
	w.has("Pod shop/cart-1", "EndpointSlice shop/cart-1")
	w.neverDeleted()
}
