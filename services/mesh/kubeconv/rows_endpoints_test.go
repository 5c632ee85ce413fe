package kubeconv_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
)

// cluster is a Lookup.
type cluster struct {
	pods  []*kubeconv.Pod
	nodes []*corev1.Node
}

func (c *cluster) Pod(namespace, name string) *kubeconv.Pod {
	for _, p := range c.pods {
		if p.Namespace == namespace && p.Name == name {
			return p
		}
	}
	return nil
}

func (c *cluster) PodAt(namespace, ip string) *kubeconv.Pod {
	var found []*kubeconv.Pod
	for _, p := range c.pods {
		if p.Namespace == namespace && slices.Contains(p.OwnAddresses(), ip) {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

func (c *cluster) Locality(node string) *registryv1.Locality {
	for _, n := range c.nodes {
		if n.Name == node {
			return kubeconv.Locality(n.Labels)
		}
	}
	return nil
}

// pod returns the kept parts of a pod.
func pod(t testing.TB, text string) *kubeconv.Pod {
	t.Helper()
	return new(kubeconv.Keeper).Pod(read[corev1.Pod](t, text))
}

// slice returns a slice of the Service prod/web.
func slice(t testing.TB, text string) *kubeconv.Slice {
	t.Helper()
	return new(kubeconv.Keeper).Slice(read[discoveryv1.EndpointSlice](t,
		"metadata: {name: web-1, namespace: prod, labels: {kubernetes.io/service-name: web}}\n"+text))
}

func endpoints(t *testing.T, in kubeconv.Lookup, text string) *registryv1.Endpoints {
	t.Helper()
	e, err := slice(t, text).Endpoints(in)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestEPS1Health checks that a nil condition has Kubernetes' default. A terminating endpoint is
// draining while it serves, and gone when it does not.
func TestEPS1Health(t *testing.T) {
	const gone = registryv1.Health(-1)
	for _, c := range []struct {
		conditions string
		want       registryv1.Health
	}{
		{"{}", registryv1.Health_HEALTH_HEALTHY},
		{"{ready: true, serving: true, terminating: false}", registryv1.Health_HEALTH_HEALTHY},
		{"{ready: false}", registryv1.Health_HEALTH_UNHEALTHY},
		{"{ready: false, serving: false, terminating: false}", registryv1.Health_HEALTH_UNHEALTHY},
		{"{ready: false, serving: true, terminating: true}", registryv1.Health_HEALTH_DRAINING},
		{"{ready: false, terminating: true}", registryv1.Health_HEALTH_DRAINING},
		{"{ready: false, serving: false, terminating: true}", gone},
	} {
		e := endpoints(t, nil, "endpoints: [{addresses: [10.0.0.1], conditions: "+c.conditions+"}]")
		got := gone
		if len(e.GetEndpoints()) == 1 {
			got = e.GetEndpoints()[0].GetHealth()
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.conditions, got, c.want)
		}
	}
}

// TestEPS3Slices checks that each slice is converted alone, so that an endpoint is converted the
// same way in any slice, and that IPv6 slices are converted like IPv4 slices.
func TestEPS3Slices(t *testing.T) {
	const moved = "ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1], nodeName: n1, targetRef: {kind: Pod, name: a}}]\n"
	other := read[discoveryv1.EndpointSlice](t, "metadata: {name: web-2, namespace: prod, labels: {kubernetes.io/service-name: web}}\n"+moved)
	after, err := new(kubeconv.Keeper).Slice(other).Endpoints(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(endpoints(t, nil, moved), after, protocmp.Transform()); diff != "" {
		t.Errorf("the same endpoint in two slices:\n%s", diff)
	}
	wantText(t, endpoints(t, nil, `
addressType: IPv6
ports: [{name: http, port: 8080, appProtocol: http2}, {name: all}, {name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: ["fd00::1"]}]
`), `service: "web"
ports {name: "http" number: 8080 app_protocol: "http2"}
endpoints {addresses: "fd00::1" health: HEALTH_HEALTHY}`)
}

// TestEPS3Names checks that a slice of host names is an error.
func TestEPS3Names(t *testing.T) {
	s := slice(t, "addressType: FQDN\nendpoints: [{addresses: [db.example.com]}]")
	_, err := s.Endpoints(nil)
	var e *problem.Diagnostic
	if !errors.As(err, &e) || e.Field != "addressType" {
		t.Errorf("got %v, want an error of addressType", err)
	}
	var c kubeconv.Converter
	if p := payload(t, &c, "EndpointSlice", s); p.Type != ident.Undecoded {
		t.Errorf("its payload is a %s", p.Type)
	}
}

// TestEPS4EndpointBeforeItsPod checks that an endpoint of an unknown pod has none of the pod's
// data, and gets them when the slice is converted again. References returns the pods to wait for.
func TestEPS4EndpointBeforeItsPod(t *testing.T) {
	s := slice(t, `
endpoints:
- {addresses: [10.0.0.1], nodeName: n1, targetRef: {kind: Pod, namespace: prod, name: a}}
- {addresses: [10.0.0.2]}
- {addresses: [10.0.0.3], targetRef: {kind: Node, name: n1}}
`)
	pods, addresses := s.References()
	if diff := cmp.Diff([][]string{{"a"}, {"10.0.0.2"}}, [][]string{pods, addresses}); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
	var in cluster
	got, err := s.Endpoints(&in)
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got, `service: "web"
endpoints {addresses: "10.0.0.1" health: HEALTH_HEALTHY node: "n1" workload: "a"}
endpoints {addresses: "10.0.0.2" health: HEALTH_HEALTHY}
endpoints {addresses: "10.0.0.3" health: HEALTH_HEALTHY}`)

	in.pods = []*kubeconv.Pod{
		pod(t, "metadata: {name: a, namespace: prod, labels: {app: web}}\nspec: {serviceAccountName: web}\nstatus: {podIP: 10.0.0.1}"),
		pod(t, "metadata: {name: b, namespace: prod, labels: {app: old}}\nspec: {nodeName: n2}\nstatus: {podIP: 10.0.0.2}"),
		pod(t, "metadata: {name: a, namespace: other, labels: {app: wrong}}\nstatus: {podIP: 10.0.0.3}"),
	}
	if got, err = s.Endpoints(&in); err != nil {
		t.Fatal(err)
	}
	wantText(t, got, `service: "web"
endpoints {addresses: "10.0.0.1" health: HEALTH_HEALTHY node: "n1" workload: "a" service_account: "web" labels {key: "app" value: "web"}}
endpoints {addresses: "10.0.0.2" health: HEALTH_HEALTHY node: "n2" workload: "b" labels {key: "app" value: "old"}}
endpoints {addresses: "10.0.0.3" health: HEALTH_HEALTHY}`)
}

// TestEPS6Metadata checks the identity of an endpoint, and whether it uses mutual TLS.
func TestEPS6Metadata(t *testing.T) {
	in := cluster{pods: []*kubeconv.Pod{
		pod(t, "metadata: {name: a, namespace: prod, labels: {security.istio.io/tlsMode: istio}}"),
		pod(t, "metadata: {name: b, namespace: prod, labels: {security.istio.io/tlsMode: disabled}}"),
	}}
	wantText(t, endpoints(t, &in, `
endpoints:
- {addresses: [10.0.0.1], targetRef: {kind: Pod, name: a}}
- {addresses: [10.0.0.2], targetRef: {kind: Pod, name: b}}
`), `service: "web"
endpoints {addresses: "10.0.0.1" health: HEALTH_HEALTHY workload: "a" mutual_tls: true labels {key: "security.istio.io/tlsMode" value: "istio"}}
endpoints {addresses: "10.0.0.2" health: HEALTH_HEALTHY workload: "b" labels {key: "security.istio.io/tlsMode" value: "disabled"}}`)
}

// TestPOD1Facts checks all data that a pod has as a workload.
func TestPOD1Facts(t *testing.T) {
	p := pod(t, `
metadata: {name: a, namespace: prod, labels: {version: v1, topology.istio.io/network: net1, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: web, nodeName: n1, containers: [{name: app, ports: [{name: http, containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}], conditions: [{type: Ready, status: "True"}]}
`)
	wantText(t, p.Workload(&registryv1.Locality{Region: "eu", Zone: "eu-1"}), `
addresses: ["10.0.0.1", "fd00::1"] service_account: "web" node: "n1" network: "net1" mutual_tls: true health: HEALTH_HEALTHY
labels {key: "version" value: "v1"} labels {key: "topology.istio.io/network" value: "net1"} labels {key: "security.istio.io/tlsMode" value: "istio"}
locality {region: "eu" zone: "eu-1"} ports {key: "http" value: 8080}`)
}

// TestPOD2LabelChange checks that a change of labels changes the pod and its endpoints.
func TestPOD2LabelChange(t *testing.T) {
	p := pod(t, "metadata: {name: a, namespace: prod, labels: {version: v1}}\nstatus: {podIP: 10.0.0.1}")
	c := kubeconv.Converter{Lookup: &cluster{pods: []*kubeconv.Pod{p}}}
	s := slice(t, "endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: a}}]")
	pod, of := payload(t, &c, "Pod", p), payload(t, &c, "EndpointSlice", s)
	p.Labels = map[string]string{"version": "v2"}
	if string(pod.Bytes) == string(payload(t, &c, "Pod", p).Bytes) || string(of.Bytes) == string(payload(t, &c, "EndpointSlice", s).Bytes) {
		t.Error("another label does not change the payload")
	}
}

// TestPOD3Ended checks that a pod that has ended, or has no IP yet, is not published and is not
// found by its IP.
func TestPOD3Ended(t *testing.T) {
	var c kubeconv.Converter
	for _, status := range []string{
		"{phase: Succeeded, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}",
		"{phase: Failed, podIP: 10.0.0.1}",
		"{phase: Pending}",
	} {
		p := pod(t, "metadata: {name: a, namespace: prod}\nstatus: "+status)
		if _, ok := c.Payload(mustKind(t, "Pod"), p); ok || len(p.OwnAddresses()) > 0 {
			t.Errorf("status %s: the pod is published or found by its IP", status)
		}
	}
	p := pod(t, `
metadata: {name: a, namespace: prod, deletionTimestamp: "2026-01-31T12:00:00Z"}
status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
`)
	wantText(t, p.Workload(nil), `addresses: "10.0.0.1" health: HEALTH_DRAINING`)
}

// TestPOD3HostNetwork checks that pods with the IP of their node are found by name, never by IP.
func TestPOD3HostNetwork(t *testing.T) {
	on := func(name string) *kubeconv.Pod {
		return pod(t, "metadata: {name: "+name+", namespace: prod, labels: {app: "+name+"}}\nspec: {hostNetwork: true, nodeName: n1}\nstatus: {podIP: 192.168.0.1}")
	}
	in := cluster{pods: []*kubeconv.Pod{on("a"), on("b")}}
	wantText(t, endpoints(t, &in, `
endpoints:
- {addresses: [192.168.0.1], nodeName: n1, targetRef: {kind: Pod, name: b}}
- {addresses: [192.168.0.1], nodeName: n1}
`), `service: "web"
endpoints {addresses: "192.168.0.1" health: HEALTH_HEALTHY node: "n1" workload: "b" labels {key: "app" value: "b"}}
endpoints {addresses: "192.168.0.1" health: HEALTH_HEALTHY node: "n1"}`)
	wantText(t, on("a").Workload(nil), `addresses: "192.168.0.1" node: "n1" host_network: true health: HEALTH_UNHEALTHY labels {key: "app" value: "a"}`)
}

// TestNOD1Locality checks that the locality comes from the labels of the pod, else of the node,
// or from the zone of the endpoint while the node is unknown.
func TestNOD1Locality(t *testing.T) {
	node := read[corev1.Node](t, `
metadata:
  name: n1
  labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: eu-1, topology.istio.io/subzone: rack-7, other: x}
`)
	var in cluster
	const text = "endpoints: [{addresses: [10.0.0.1], nodeName: n1, zone: eu-9, targetRef: {kind: Pod, name: a}}]"
	locality := func() *registryv1.Locality { return endpoints(t, &in, text).GetEndpoints()[0].GetLocality() }
	wantText(t, locality(), `zone: "eu-9"`)
	in.nodes = []*corev1.Node{node}
	wantText(t, locality(), `region: "eu" zone: "eu-1" sub_zone: "rack-7"`)
	for label, want := range map[string]string{
		"{istio-locality: us.us-2}": `region: "us" zone: "us-2"`,
		"{istio-locality: us.us-2.a, topology.istio.io/locality: ap/ap-1/b}": `region: "ap" zone: "ap-1" sub_zone: "b"`,
	} {
		in.pods = []*kubeconv.Pod{pod(t, "metadata: {name: a, namespace: prod, labels: "+label+"}\nspec: {nodeName: n1}")}
		wantText(t, locality(), want)
		wantText(t, in.pods[0].Workload(kubeconv.Locality(node.Labels)).GetLocality(), want)
	}
}

// TestNS1Labels checks that a namespace has its labels and the annotations that affect proxies.
func TestNS1Labels(t *testing.T) {
	m, err := kubeconv.Namespace(read[corev1.Namespace](t, `
metadata:
  name: istio-system
  labels: {topology.istio.io/network: net1, istio.io/rev: stable}
  annotations: {scheduler.alpha.kubernetes.io/node-selector: x, topology.istio.io/controlPlaneClusters: "*", meshlog.dev/traceparent: 00-1}
status: {phase: Active}
`))
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, m, `api_version: "v1" kind: "Namespace"
json: "{\"metadata\":{\"annotations\":{\"topology.istio.io/controlPlaneClusters\":\"*\"},\"labels\":{\"istio.io/rev\":\"stable\",\"topology.istio.io/network\":\"net1\"}}}"`)
}

// NDS-1: an endpoint keeps its hostname, which is a name below that of its Service.
func TestHostname(t *testing.T) {
	s := new(kubeconv.Keeper).Slice(read[discoveryv1.EndpointSlice](t, `
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{port: 5432}]
endpoints: [{addresses: [10.1.0.1], hostname: db-0}, {addresses: [10.1.0.2]}]
`))
	e, err := s.Endpoints(nil)
	if err != nil || e.GetEndpoints()[0].GetHostname() != "db-0" || e.GetEndpoints()[1].GetHostname() != "" {
		t.Errorf("%v, %v", e, err)
	}
}
