package kubeconv_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/kubeconv"
)

// cluster is a Lookup.
type cluster struct {
	pods  map[string]*corev1.Pod
	nodes map[string]*corev1.Node
}

func (c cluster) Pod(namespace, name string) *corev1.Pod { return c.pods[namespace+"/"+name] }
func (c cluster) PodAt(string, string) *corev1.Pod       { return nil }
func (c cluster) Node(name string) *corev1.Node          { return c.nodes[name] }

func meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "prod", Name: name, Labels: labels}
}

// TestLookup holds what pods and nodes say of endpoints (POD-1, NOD-1); what is
// not known yet leaves no trace (EPS-4).
func TestLookup(t *testing.T) {
	in := cluster{
		nodes: map[string]*corev1.Node{
			"n1": {ObjectMeta: meta("n1", map[string]string{
				"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1", "topology.istio.io/subzone": "rack-7",
			})},
			"bare": {ObjectMeta: meta("bare", nil)},
		},
		pods: map[string]*corev1.Pod{
			"prod/a": {
				ObjectMeta: meta("a", map[string]string{"version": "v1", "topology.istio.io/network": "net1", "security.istio.io/tlsMode": "istio"}),
				Spec:       corev1.PodSpec{ServiceAccountName: "reviews"},
			},
			"prod/b": {ObjectMeta: meta("b", map[string]string{"topology.istio.io/locality": "us/us-2"})},
		},
	}
	node := func(s string) *string { return &s }
	pod := func(name string) *corev1.ObjectReference { return &corev1.ObjectReference{Kind: "Pod", Name: name} }
	zone := "eu-9"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta("s", map[string]string{discoveryv1.LabelServiceName: "reviews"}),
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, NodeName: node("n1"), Zone: &zone, TargetRef: pod("a")},
			{Addresses: []string{"10.0.0.2"}, NodeName: node("n1"), TargetRef: pod("b")},
			{Addresses: []string{"10.0.0.3"}, NodeName: node("bare"), Zone: &zone, TargetRef: pod("unknown")},
			{Addresses: []string{"10.0.0.4"}, NodeName: node("unknown"), TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "a"}},
		},
	}
	got, err := kubeconv.EndpointSlice(slice, in)
	if err != nil {
		t.Fatal(err)
	}
	healthy := registryv1.Health_HEALTH_HEALTHY
	want := &registryv1.Endpoints{Service: "reviews", Endpoints: []*registryv1.Endpoint{
		{
			Addresses: []string{"10.0.0.1"}, Health: healthy, Node: "n1", Workload: "a", Labels: in.pods["prod/a"].Labels,
			Locality: &registryv1.Locality{Region: "eu", Zone: "eu-1", SubZone: "rack-7"}, Network: "net1", MutualTls: true, ServiceAccount: "reviews",
		},
		{
			Addresses: []string{"10.0.0.2"}, Health: healthy, Node: "n1", Workload: "b", Labels: in.pods["prod/b"].Labels,
			Locality: &registryv1.Locality{Region: "us", Zone: "us-2"},
		},
		{Addresses: []string{"10.0.0.3"}, Health: healthy, Node: "bare", Workload: "unknown", Locality: &registryv1.Locality{Zone: "eu-9"}},
		{Addresses: []string{"10.0.0.4"}, Health: healthy, Node: "unknown"},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w := kubeconv.Pod(in.pods["prod/a"], in.nodes["n1"])
	if l := w.GetLocality(); l.GetRegion() != "eu" || w.GetServiceAccount() != "reviews" {
		t.Errorf("a pod on n1 is in %v, as %q", l, w.GetServiceAccount())
	}
}
