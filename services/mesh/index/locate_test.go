package index_test

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// claims returns a proxy whose node claims labels and more, with an identity of
// namespace shop.
func claims(t *testing.T, id, account string, labels map[string]any, more map[string]any) *proxy.Proxy {
	t.Helper()
	fields := map[string]any{"NAMESPACE": "shop"}
	if labels != nil {
		fields["LABELS"] = labels
	}
	for k, v := range more {
		fields[k] = v
	}
	m, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(&corev3.Node{Id: id, Cluster: "c", Metadata: m})
	if err != nil {
		t.Fatal(err)
	}
	if account != "" {
		p.Identity = proxy.Identity{Namespace: "shop", ServiceAccount: account}
	}
	return p
}

func pod(namespace, name, account, address string, labels ...string) Change {
	w := &registryv1.Workload{Addresses: []string{address}, ServiceAccount: account, Labels: map[string]string{}}
	for i := 0; i < len(labels); i += 2 {
		w.Labels[labels[i]] = labels[i+1]
	}
	return inCluster("c1", Object("Pod", namespace, name, w))
}

// What the world knows of a proxy outranks what the proxy says (XDS-6, I34).
func TestLocate(t *testing.T) {
	ingress := map[string]any{"istio": "ingressgateway"}
	host := &registryv1.Workload{Addresses: []string{"10.9.9.9"}, HostNetwork: true, ServiceAccount: "agent", Labels: map[string]string{"app": "agent"}}
	pc := PushContext(t,
		pod("shop", "cart-1", "cart", "10.0.0.1", "app", "cart"),
		pod("shop", "cart-2", "cart", "10.0.0.2", "app", "cart", "canary", "yes"),
		pod("shop", "gateway-1", "gateway", "10.0.0.3", "istio", "ingressgateway"),
		pod("bank", "gateway-2", "cart", "10.0.0.4", "istio", "ingressgateway"),
		inCluster("c1", Object("Pod", "shop", "agent-1", host)),
		Object("WorkloadEntry", "shop", "vm", &networking.WorkloadEntry{
			Address: "10.1.0.1", ServiceAccount: "vm", Labels: map[string]string{"app": "vm"}, Locality: "r/z/s", Network: "n1",
		}),
	)
	for _, c := range []struct {
		name     string
		proxy    *proxy.Proxy
		standing index.Standing
		labels   map[string]string
		cluster  string
	}{
		{"without an identity, claims count", claims(t, "router~10.0.0.1~cart-1.shop~", "", ingress, map[string]any{"CLUSTER_ID": "c9"}), index.Unproven, map[string]string{"istio": "ingressgateway"}, "c9"},
		{"an account without workloads", claims(t, "router~10.0.0.1~cart-1.shop~", "other", ingress, nil), index.Unproven, map[string]string{"istio": "ingressgateway"}, ""},
		{"a Pod that claims a gateway's labels", claims(t, "router~10.0.0.1~cart-1.shop~", "cart", ingress, map[string]any{"CLUSTER_ID": "c9"}), index.Located, map[string]string{"app": "cart"}, "c1"},
		{"by its name", claims(t, "sidecar~10.0.0.77~cart-2.shop~", "cart", nil, nil), index.Located, map[string]string{"app": "cart", "canary": "yes"}, "c1"},
		{"by its IP", claims(t, "sidecar~10.0.0.2~renamed.shop~", "cart", nil, nil), index.Located, map[string]string{"app": "cart", "canary": "yes"}, "c1"},
		{"a plain Envoy with the name as its id", claims(t, "cart-1", "cart", ingress, nil), index.Located, map[string]string{"app": "cart"}, "c1"},
		{"a plain Envoy that names itself in the metadata", claims(t, "e1", "cart", ingress, map[string]any{"NAME": "cart-1"}), index.Located, map[string]string{"app": "cart"}, "c1"},
		{"the name of a Pod of another account", claims(t, "router~10.0.0.3~gateway-1.shop~", "cart", ingress, nil), index.Stranger, nil, ""},
		{"the name of a Pod of another namespace", claims(t, "router~10.0.0.4~gateway-2.shop~", "cart", ingress, map[string]any{"CLUSTER_ID": "c1"}), index.Stranger, nil, ""},
		{"the IP of a node", claims(t, "router~10.9.9.9~x.shop~", "agent", ingress, nil), index.Stranger, nil, ""},
		{"a machine by its IP", claims(t, "sidecar~10.1.0.1~machine.shop~", "vm", ingress, map[string]any{"CLUSTER_ID": "c1"}), index.Located, map[string]string{"app": "vm"}, "c1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := c.proxy.Metadata.String()
			p, standing := pc.Locate(c.proxy)
			if standing != c.standing {
				t.Errorf("standing %d, want %d", standing, c.standing)
			}
			// Node describes the proxy completely: the command line makes its class of it.
			again, err := proxy.New(p.Node())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []*proxy.Proxy{p, again} {
				if diff := cmp.Diff(c.labels, p.Labels); diff != "" && len(c.labels)+len(p.Labels) > 0 {
					t.Errorf("labels (-want +got):\n%s", diff)
				}
				if p.ClusterID != c.cluster {
					t.Errorf("in cluster %q, want %q", p.ClusterID, c.cluster)
				}
			}
			if c.proxy.Metadata.String() != was {
				t.Error("Locate has changed the proxy")
			}
		})
	}
	p, _ := pc.Locate(claims(t, "sidecar~10.1.0.1~machine.shop~", "vm", nil, map[string]any{"NETWORK": "n9"}))
	if p.Locality != (proxy.Locality{Region: "r", Zone: "z", SubZone: "s"}) || p.Text("NETWORK") != "n1" {
		t.Errorf("the machine is in %+v, network %s", p.Locality, p.Text("NETWORK"))
	}
}

// A change of what Locate reads is an input, and no other change of a Pod (I34).
func TestLocateInputs(t *testing.T) {
	w := World(t, pod("shop", "cart-1", "cart", "10.0.0.1", "app", "cart"))
	pc := index.NewPushContext(w)
	for _, c := range []struct {
		name   string
		change Change
		want   []index.Input
	}{
		{"a label", pod("shop", "cart-1", "cart", "10.0.0.1", "app", "cart", "canary", "yes"), []index.Input{index.WorkloadInput("shop", "cart")}},
		{"its account", pod("shop", "cart-1", "other", "10.0.0.1", "app", "cart"), []index.Input{index.WorkloadInput("shop", "cart"), index.WorkloadInput("shop", "other")}},
		{"a further Pod", pod("shop", "cart-2", "cart", "10.0.0.2"), []index.Input{index.WorkloadInput("shop", "cart")}},
		{"its health", inCluster("c1", Object("Pod", "shop", "cart-1", &registryv1.Workload{
			Addresses: []string{"10.0.0.1"}, ServiceAccount: "cart", Labels: map[string]string{"app": "cart"}, Health: registryv1.Health_HEALTH_UNHEALTHY,
		})), nil},
	} {
		next, keys, err := w.Apply(Rows(c.change))
		if err != nil {
			t.Fatal(err)
		}
		_, inputs := pc.Next(next, keys)
		inputs = withoutTargets(inputs)
		if diff := cmp.Diff(c.want, inputs); diff != "" && len(c.want)+len(inputs) > 0 {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// Only networks in which there are endpoints make a class (XDS-3, NET-5).
func TestNET5OnlyKnownNetworks(t *testing.T) {
	slice := func(name, network string) Change {
		return inCluster("c1", Object("EndpointSlice", "a", name, &registryv1.Endpoints{
			Service: "x", Ports: []*registryv1.EndpointPort{{Name: "http", Number: 80}},
			Endpoints: []*registryv1.Endpoint{{Addresses: []string{"10.1.2.3"}, Network: network}},
		}))
	}
	w := World(t, inCluster("c1", Service("a", "x", "80 http")), slice("one", "n1"), slice("two", "n2"), slice("three", "n3"))
	pc := index.NewPushContext(w)
	requested := func(pc *index.PushContext, view string) string {
		p := claims(t, "sidecar~10.0.0.1~x.shop~", "", nil, map[string]any{"REQUESTED_NETWORK_VIEW": view})
		return index.Classify(pc, p).EDS.View.Requested
	}
	for view, want := range map[string]string{
		"": "", " , ": "", "n1": "n1", "n2,n1": "n1,n2", "n1,nowhere": "n1", "n3, n2,n1,n1": "", "nowhere": "~", "~": "~",
	} {
		if got := requested(pc, view); got != want {
			t.Errorf("of %q counts %q, want %q", view, got, want)
		}
	}
	classes := map[index.ProxyClass]bool{}
	for i := range 1000 {
		p := claims(t, "sidecar~10.0.0.1~x.shop~", "", nil, map[string]any{"REQUESTED_NETWORK_VIEW": fmt.Sprint("net", i)})
		classes[index.Classify(pc, p)] = true
	}
	if len(classes) != 1 {
		t.Errorf("a thousand invented networks make %d classes, want 1", len(classes))
	}
	// A network that comes or goes puts proxies into other classes.
	next, keys, err := w.Apply(Rows(slice("three", "n1"), slice("four", "n4")))
	if err != nil {
		t.Fatal(err)
	}
	after, _ := pc.Next(next, keys)
	if pc.SameClasses(after) || requested(after, "n3") != "~" || requested(after, "n4") != "n4" {
		t.Errorf("after the change: of n3 counts %q, of n4 %q", requested(after, "n3"), requested(after, "n4"))
	}
}
