package kubeconv

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Lookup finds what an EndpointSlice refers to; both return nil where it is
// not known. A nil Lookup knows nothing.
type Lookup interface {
	Pod(namespace, name string) *corev1.Pod
	Node(name string) *corev1.Node
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
	for _, e := range s.Endpoints {
		if health, there := health(e.Conditions); there {
			out.Endpoints = append(out.Endpoints, endpoint(s.Namespace, e, health, in))
		}
	}
	return out, nil
}

// health of an endpoint: whoever terminates and still serves drains; whoever
// terminates and does not is gone.
func health(c discoveryv1.EndpointConditions) (h registryv1.Health, there bool) {
	ready := c.Ready == nil || *c.Ready
	serving := ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	switch {
	case value(c.Terminating):
		return registryv1.Health_HEALTH_DRAINING, serving
	case ready:
		return registryv1.Health_HEALTH_HEALTHY, true
	}
	return registryv1.Health_HEALTH_UNHEALTHY, true
}

func endpoint(namespace string, e discoveryv1.Endpoint, health registryv1.Health, in Lookup) *registryv1.Endpoint {
	out := &registryv1.Endpoint{Addresses: e.Addresses, Health: health, Node: value(e.NodeName)}
	if z := value(e.Zone); z != "" {
		out.Locality = &registryv1.Locality{Zone: z}
	}
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		out.Workload = e.TargetRef.Name
	}
	if in == nil {
		return out
	}
	if out.GetNode() != "" {
		if n := in.Node(out.GetNode()); n != nil {
			if l := Locality(n.Labels); l != nil {
				out.Locality = l
			}
		}
	}
	if out.GetWorkload() != "" {
		if p := in.Pod(namespace, out.GetWorkload()); p != nil {
			out.Labels, out.ServiceAccount = p.Labels, p.Spec.ServiceAccountName
			out.Network, out.MutualTls = p.Labels[networkLabel], p.Labels[tlsModeLabel] == mutualTLS
			if l := labelled(p.Labels); l != nil {
				out.Locality = l
			}
		}
	}
	return out
}
