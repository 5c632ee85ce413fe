package kubeconv_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kubeconv"
)

// TestSVC5SVC6Outside checks the external addresses of a Service; their order in the status
// has no meaning.
func TestSVC5SVC6Outside(t *testing.T) {
	balanced := func(ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.9"},
				Ports: []corev1.ServicePort{{Port: 15443, NodePort: 31000}},
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
		}
	}
	one, two := corev1.LoadBalancerIngress{IP: "192.0.2.1"}, corev1.LoadBalancerIngress{Hostname: "gw.example.com"}
	a, b := kubeconv.Service(balanced(one, two), ""), kubeconv.Service(balanced(two, one), "")
	if diff := cmp.Diff([]string{"192.0.2.1", "192.0.2.9", "gw.example.com"}, a.GetExternalAddresses()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if !proto.Equal(a, b) {
		t.Error("the order of a load balancer's addresses changes the content")
	}
	if a.GetPorts()[0].GetNodePort() != 0 || a.GetNodeSelector() != nil {
		t.Errorf("a load balancer has the addresses of nodes: %v", a)
	}

	ports := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"traffic.istio.io/nodeSelector": `{"edge": "yes"}`}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 15443, NodePort: 31000}}},
	}
	want := &registryv1.Service{
		Ports:        []*registryv1.ServicePort{{Number: 15443, NodePort: 31000}},
		NodeSelector: &registryv1.NodeSelector{Labels: map[string]string{"edge": "yes"}},
	}
	if diff := cmp.Diff(want, kubeconv.Service(ports, ""), protocmp.Transform()); diff != "" {
		t.Errorf("by nodes (-want +got):\n%s", diff)
	}
}

// TestNodeOutside checks that a Node has its external IPs and no others.
func TestNodeOutside(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"edge": "yes"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "ExternalIP", Address: "192.0.2.7"}, {Type: "Hostname", Address: "n1"},
		}},
	}
	m, err := kubeconv.Node(n)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"externalIPs":["192.0.2.7"],"metadata":{"labels":{"edge":"yes"}}}`
	if got := string(m.(*registryv1.Object).GetJson()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
