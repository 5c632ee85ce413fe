package kubeconv

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Pod is what of a Pod is worth keeping in memory: what it and its endpoints are
// converted by. Nobody writes to it.
type Pod struct {
	Namespace, Name string
	// Node is the name of the one it runs on; empty: of none yet.
	Node           string
	ServiceAccount string
	Labels         map[string]string
	// Addresses are its IPs, the first counts most; one that has ended has none
	// any more, for they are given to others (POD-3).
	Addresses []string
	// HostNetwork: its IPs are those of its node.
	HostNetwork bool
	Health      registryv1.Health
	// Ports are those of containers by name.
	Ports map[string]uint32
}

// Pod reads a Pod (POD-1, POD-3). One that is ending takes no new sessions.
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

// OwnAddresses are the IPs by which a Pod is found: none if it shares those of
// its node (POD-3).
func (p *Pod) OwnAddresses() []string {
	if p.HostNetwork {
		return nil
	}
	return p.Addresses
}

// Workload is what the log carries of a Pod on a node in that locality; nil: not
// known.
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

// containerPorts are those that a Service may name (SVC-9); the first of a
// name counts, and those of containers that end before the others start do not.
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
