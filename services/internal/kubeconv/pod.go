package kubeconv

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Pod converts a Pod (POD-1, POD-3), which runs on node; nil: not known. One
// that has ended has no addresses, and one that is ending takes no new sessions.
func Pod(p *corev1.Pod, node *corev1.Node) *registryv1.Workload {
	out := &registryv1.Workload{
		Labels: p.Labels, ServiceAccount: p.Spec.ServiceAccountName, Node: p.Spec.NodeName,
		Network: p.Labels[networkLabel], MutualTls: p.Labels[tlsModeLabel] == mutualTLS,
		HostNetwork: p.Spec.HostNetwork, Locality: labelled(p.Labels), Health: registryv1.Health_HEALTH_UNHEALTHY,
		Ports: containerPorts(p), Addresses: Addresses(p),
	}
	if out.GetLocality() == nil && node != nil {
		out.Locality = Locality(node.Labels)
	}
	if isReady(p) {
		out.Health = registryv1.Health_HEALTH_HEALTHY
		if p.DeletionTimestamp != nil {
			out.Health = registryv1.Health_HEALTH_DRAINING
		}
	}
	return out
}

// Addresses are the IPs of a Pod, the first counts most; one that has ended has
// none any more, for they are given to others.
func Addresses(p *corev1.Pod) []string {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	var out []string
	for _, ip := range p.Status.PodIPs {
		out = append(out, ip.IP)
	}
	if len(out) == 0 && p.Status.PodIP != "" {
		out = []string{p.Status.PodIP}
	}
	return out
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// containerPorts are those that a Service may name (SVC-9); the first of a
// name counts, and those of containers that end before the others start do not.
func containerPorts(p *corev1.Pod) map[string]uint32 {
	var out map[string]uint32
	for _, port := range namedPorts(p) {
		if _, taken := out[port.Name]; taken {
			continue
		}
		if out == nil {
			out = map[string]uint32{}
		}
		out[port.Name] = unsigned(port.ContainerPort)
	}
	return out
}

func namedPorts(p *corev1.Pod) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.Name != "" && transport(port.Protocol) == "" {
				out = append(out, port)
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; value(c.RestartPolicy) == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}
