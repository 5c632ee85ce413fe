package kubeconv

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// SliceLabel is the label by which EndpointSlices name their Service. Those
// without it are not Kubernetes' own business.
const SliceLabel = discoveryv1.LabelServiceName

// Lookup finds what an EndpointSlice refers to; all return nil where it is not
// known, or not known yet (EPS-4). A nil Lookup knows nothing.
type Lookup interface {
	Pod(namespace, name string) *corev1.Pod
	// PodAt is the one pod of the namespace of which OwnAddresses has that IP;
	// nil if there are several.
	PodAt(namespace, ip string) *corev1.Pod
	Node(name string) *corev1.Node
}

// OwnAddresses are the IPs by which a Pod is found: none if it shares those of
// its node (POD-3).
func OwnAddresses(p *corev1.Pod) []string {
	if p.Spec.HostNetwork {
		return nil
	}
	return Addresses(p)
}

// References are the pods that a slice's endpoints refer to: by name, or by IP
// where they name none. When one of those changes, the slice is to be converted
// again (EPS-4), as it is when a Node does that an endpoint names.
func References(s *discoveryv1.EndpointSlice) (pods, addresses []string) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if name := podOf(e); name != "" {
			pods = append(pods, name)
		} else if e.TargetRef == nil && len(e.Addresses) > 0 {
			addresses = append(addresses, e.Addresses[0])
		}
	}
	return pods, addresses
}

// podOf is the name of the pod that an endpoint says it is.
func podOf(e *discoveryv1.Endpoint) string {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return ""
	}
	return e.TargetRef.Name
}

// EndpointSlice converts a slice (EPS-1, EPS-3), and what pods and nodes say of
// its endpoints (POD-1, NOD-1) where in knows them. The error, an *Error, says
// that it holds what is no endpoint.
func EndpointSlice(s *discoveryv1.EndpointSlice, in Lookup) (*registryv1.Endpoints, error) {
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, &Error{
			Field:  "addressType",
			Reason: "endpoints are IP addresses here; for host names write a ServiceEntry with resolution DNS",
		}
	}
	out := &registryv1.Endpoints{Service: s.Labels[discoveryv1.LabelServiceName]}
	for _, p := range s.Ports {
		if p.Port == nil || transport(value(p.Protocol)) != "" {
			continue // "all ports", and UDP: nothing that a proxy is told
		}
		out.Ports = append(out.Ports, &registryv1.EndpointPort{
			Name: value(p.Name), Number: unsigned(*p.Port), AppProtocol: value(p.AppProtocol),
		})
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if health, there := health(e.Conditions); there {
			out.Endpoints = append(out.Endpoints, endpoint(s.Namespace, e, health, in))
		}
	}
	return out, nil
}

// health of an endpoint: one that is not ready, terminates and still serves
// drains; one that does not serve any more is gone. Ready is said of endpoints
// that are neither where the Service wants it so (SVC-12).
func health(c discoveryv1.EndpointConditions) (h registryv1.Health, there bool) {
	serving := c.Serving == nil || *c.Serving
	switch {
	case c.Ready == nil || *c.Ready:
		return registryv1.Health_HEALTH_HEALTHY, true
	case value(c.Terminating):
		return registryv1.Health_HEALTH_DRAINING, serving
	}
	return registryv1.Health_HEALTH_UNHEALTHY, true
}

func endpoint(namespace string, e *discoveryv1.Endpoint, health registryv1.Health, in Lookup) *registryv1.Endpoint {
	out := &registryv1.Endpoint{Addresses: e.Addresses, Health: health, Node: value(e.NodeName), Workload: podOf(e)}
	if z := value(e.Zone); z != "" {
		out.Locality = &registryv1.Locality{Zone: z}
	}
	if in == nil {
		return out
	}
	pod := lookUp(namespace, e, in)
	if pod != nil {
		out.Workload = pod.Name
		if out.GetNode() == "" {
			out.Node = pod.Spec.NodeName
		}
	}
	if out.GetNode() != "" {
		if n := in.Node(out.GetNode()); n != nil {
			if l := Locality(n.Labels); l != nil {
				out.Locality = l
			}
		}
	}
	if pod == nil {
		return out
	}
	out.Labels, out.ServiceAccount = pod.Labels, pod.Spec.ServiceAccountName
	out.Network, out.MutualTls = pod.Labels[networkLabel], pod.Labels[tlsModeLabel] == mutualTLS
	if l := labelled(pod.Labels); l != nil {
		out.Locality = l
	}
	return out
}

// lookUp finds the pod that an endpoint is: the one that it names, and only
// where it names nothing the one that has its IP for itself (POD-3).
func lookUp(namespace string, e *discoveryv1.Endpoint, in Lookup) *corev1.Pod {
	if name := podOf(e); name != "" {
		return in.Pod(namespace, name)
	}
	if e.TargetRef != nil || len(e.Addresses) == 0 {
		return nil
	}
	return in.PodAt(namespace, e.Addresses[0])
}
