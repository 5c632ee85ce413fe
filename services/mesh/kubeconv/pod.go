package kubeconv

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Pod has the parts of a Pod that the conversion of pods and endpoints needs. It is
// immutable.
type Pod struct {
	Namespace, Name string
	Node            string // empty if the pod is not scheduled
	ServiceAccount  string
	Labels          map[string]string
	// Addresses are the IPs, the most important first. A pod that has ended has none,
	// because other pods may get them (POD-3).
	Addresses   []string
	HostNetwork bool // the pod has its node's IPs
	Health      registryv1.Health
	Ports       map[string]uint32 // of containers, by name
}

// Pod extracts the parts of a Pod (POD-1, POD-3). A ready pod that is terminating is
// draining: it takes no new sessions.
func (k *Keeper) Pod(p *corev1.Pod) *Pod {
	out := &Pod{
		Namespace: k.text(p.Namespace), Name: p.Name, Node: k.text(p.Spec.NodeName), ServiceAccount: k.text(p.Spec.ServiceAccountName),
		Labels: k.labels(p.Labels), HostNetwork: p.Spec.HostNetwork, Ports: k.ports(containerPorts(p)), Health: registryv1.Health_HEALTH_UNHEALTHY,
	}
	if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		out.Addresses = addresses(p)
	}
	if isReady(p) {
		out.Health = registryv1.Health_HEALTH_HEALTHY
		if p.DeletionTimestamp != nil {
			out.Health = registryv1.Health_HEALTH_DRAINING
		}
	}
	return out
}

// OwnAddresses returns the IPs that identify a Pod: none if it has its node's IPs
// (POD-3).
func (p *Pod) OwnAddresses() []string {
	if p.HostNetwork {
		return nil
	}
	return p.Addresses
}

// Workload converts a Pod. node is the locality of its node, or nil if unknown.
func (p *Pod) Workload(node *registryv1.Locality) *registryv1.Workload {
	return &registryv1.Workload{
		Addresses: p.Addresses, Labels: p.Labels, ServiceAccount: p.ServiceAccount, Node: p.Node,
		Network: p.network(), MutualTls: p.mutualTLS(), HostNetwork: p.HostNetwork,
		Locality: cmp.Or(labelled(p.Labels), node), Health: p.Health, Ports: p.Ports,
	}
}

func (p *Pod) network() string { return p.Labels[networkLabel] }

func (p *Pod) mutualTLS() bool { return p.Labels[tlsModeLabel] == mutualTLS }

func addresses(p *corev1.Pod) []string {
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

// containerPorts returns the ports that a Service may name (SVC-9). The first port of
// a name counts. Init containers count only if they keep running (sidecars).
func containerPorts(p *corev1.Pod) map[string]uint32 {
	out := map[string]uint32{}
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if _, taken := out[port.Name]; !taken && port.Name != "" && transport(port.Protocol) == "" {
				out[port.Name] = unsigned(port.ContainerPort)
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
