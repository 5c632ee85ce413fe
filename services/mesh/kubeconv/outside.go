package kubeconv

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// nodeSelectorAnnotation selects the nodes that accept external traffic for a Service
// of type NodePort: their labels, as JSON.
const nodeSelectorAnnotation = "traffic.istio.io/nodeSelector"

// outside sets the external addresses of a Service, which may be the gateway of a
// network (SVC-5, SVC-6). It sorts them because the order in the status of a load
// balancer has no meaning.
func outside(out *registryv1.Service, s *corev1.Service) {
	addresses := slices.Clone(s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a := cmp.Or(i.IP, i.Hostname); a != "" {
			addresses = append(addresses, a)
		}
	}
	slices.Sort(addresses)
	out.ExternalAddresses = slices.Compact(addresses)
	text := s.Annotations[nodeSelectorAnnotation]
	var labels map[string]string
	if s.Spec.Type != corev1.ServiceTypeNodePort || text == "" || json.Unmarshal([]byte(text), &labels) != nil {
		return
	}
	out.NodeSelector = &registryv1.NodeSelector{Labels: labels}
	for i, p := range s.Spec.Ports {
		out.Ports[i].NodePort = unsigned(p.NodePort)
	}
}

// externalIPs returns the external addresses of a Node, sorted.
func externalIPs(n *corev1.Node) []string {
	var all []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeExternalIP && a.Address != "" {
			all = append(all, a.Address)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
