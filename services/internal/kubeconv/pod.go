package kubeconv

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Pod converts a Pod (POD-1, POD-3), which runs on node; nil: not known. One
// that has ended has no addresses.
func Pod(p *corev1.Pod, node *corev1.Node) *registryv1.Workload {
	out := &registryv1.Workload{
		Labels: p.Labels, ServiceAccount: p.Spec.ServiceAccountName, Node: p.Spec.NodeName,
		Network: p.Labels[networkLabel], MutualTls: p.Labels[tlsModeLabel] == mutualTLS,
		HostNetwork: p.Spec.HostNetwork, Locality: labelled(p.Labels), Health: registryv1.Health_HEALTH_UNHEALTHY,
		Ports: containerPorts(p),
	}
	if out.GetLocality() == nil && node != nil {
		out.Locality = Locality(node.Labels)
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return out
	}
	for _, ip := range p.Status.PodIPs {
		out.Addresses = append(out.Addresses, ip.IP)
	}
	if len(out.GetAddresses()) == 0 && p.Status.PodIP != "" {
		out.Addresses = []string{p.Status.PodIP}
	}
	if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		out.Health = registryv1.Health_HEALTH_HEALTHY
	}
	return out
}

// containerPorts are those that a Service may name (SVC-9); the first of a
// name counts.
func containerPorts(p *corev1.Pod) map[string]uint32 {
	var out map[string]uint32
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if _, taken := out[port.Name]; taken || port.Name == "" || transport(port.Protocol) != "" {
				continue
			}
			if out == nil {
				out = map[string]uint32{}
			}
			out[port.Name] = unsigned(port.ContainerPort)
		}
	}
	return out
}
