package kubeconv

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// SliceLabel is the label of an EndpointSlice with the name of its Service.
const SliceLabel = discoveryv1.LabelServiceName

// Lookup finds the objects that an EndpointSlice refers to. Its methods return nil for
// an unknown object (EPS-4).
type Lookup interface {
	Pod(namespace, name string) *Pod
	// PodAt returns the pod with this IP among its OwnAddresses, or nil if there are
	// several.
	PodAt(namespace, ip string) *Pod
	// Locality returns the locality of a node.
	Locality(node string) *registryv1.Locality
}

// Slice has the parts of an EndpointSlice that its conversion needs. It is immutable.
type Slice struct {
	namespace, service string
	ports              []*registryv1.EndpointPort
	endpoints          []sliceEndpoint
	bad                *problem.Diagnostic // it holds what is no endpoint
}

type sliceEndpoint struct {
	addresses  []string
	hostname   string
	node, zone string
	pod        string // name of its pod
	alone      bool   // it has no targetRef
	health     registryv1.Health
}

// Slice extracts the parts of an EndpointSlice (EPS-1, EPS-3).
func (k *Keeper) Slice(s *discoveryv1.EndpointSlice) *Slice {
	out := &Slice{namespace: k.text(s.Namespace), service: k.text(s.Labels[SliceLabel])}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		out.bad = &problem.Diagnostic{
			Field:  "addressType",
			Reason: "only IP addresses are supported; for host names write a ServiceEntry with resolution DNS",
		}
		return out
	}
	for _, p := range s.Ports {
		if p.Port == nil || transport(value(p.Protocol)) != "" {
			continue // "all ports", or not TCP: proxies cannot use it
		}
		out.ports = append(out.ports, &registryv1.EndpointPort{
			Name: k.text(value(p.Name)), Number: unsigned(*p.Port), AppProtocol: k.text(value(p.AppProtocol)),
		})
	}
	out.endpoints = make([]sliceEndpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		health, there := health(e.Conditions)
		if !there {
			continue
		}
		o := sliceEndpoint{
			addresses: e.Addresses, hostname: k.text(value(e.Hostname)), node: k.text(value(e.NodeName)), zone: k.text(value(e.Zone)),
			alone: e.TargetRef == nil, health: health,
		}
		if !o.alone && e.TargetRef.Kind == podKind {
			o.pod = e.TargetRef.Name
		}
		out.endpoints = append(out.endpoints, o)
	}
	return out
}

const podKind = "Pod"

// health returns the health of an endpoint. A terminating endpoint that still serves is
// draining; one that no longer serves is gone. With publishNotReadyAddresses,
// Kubernetes reports every endpoint as ready (SVC-12).
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

// References returns the pods that a slice's endpoints refer to, by name, or by IP if
// they have no targetRef. When such a pod or its node changes, the slice must be
// converted again (EPS-4).
func (s *Slice) References() (pods, addresses []string) {
	for i := range s.endpoints {
		switch e := &s.endpoints[i]; {
		case e.pod != "":
			pods = append(pods, e.pod)
		case e.alone && len(e.addresses) > 0:
			addresses = append(addresses, e.addresses[0])
		}
	}
	return pods, addresses
}

// Service returns the name of the slice's Service, or "".
func (s *Slice) Service() string { return s.service }

// IsOn reports whether some is true for the node of an endpoint. It does not know nodes
// that only the endpoint's pod names.
func (s *Slice) IsOn(some func(node string) bool) bool {
	return slices.ContainsFunc(s.endpoints, func(e sliceEndpoint) bool { return some(e.node) })
}

// Endpoints is what the log carries of a slice, with what pods and nodes say of
// its endpoints (POD-1, NOD-1) where in knows them. The error, an *problem.Diagnostic, says
// that it holds what is no endpoint.
func (s *Slice) Endpoints(in Lookup) (*registryv1.Endpoints, error) {
	if s.bad != nil {
		return nil, s.bad
	}
	out := &registryv1.Endpoints{Service: s.service, Ports: s.ports}
	for i := range s.endpoints {
		out.Endpoints = append(out.Endpoints, s.endpoint(&s.endpoints[i], in))
	}
	return out, nil
}

func (s *Slice) endpoint(e *sliceEndpoint, in Lookup) *registryv1.Endpoint {
	out := &registryv1.Endpoint{Addresses: e.addresses, Health: e.health, Node: e.node, Workload: e.pod, Hostname: e.hostname}
	if e.zone != "" {
		out.Locality = &registryv1.Locality{Zone: e.zone}
	}
	if in == nil {
		return out
	}
	pod := s.pod(e, in)
	if pod != nil {
		out.Workload = pod.Name
		if out.GetNode() == "" {
			out.Node = pod.Node
		}
	}
	if out.GetNode() != "" {
		if l := in.Locality(out.GetNode()); l != nil {
			out.Locality = l
		}
	}
	if pod == nil {
		return out
	}
	out.Labels, out.ServiceAccount, out.Network, out.MutualTls = pod.Labels, pod.ServiceAccount, pod.network(), pod.mutualTLS()
	if l := labelled(pod.Labels); l != nil {
		out.Locality = l
	}
	return out
}

// pod finds the pod of an endpoint: the one that it names or, if it has no targetRef, the
// one with its IP as own address (POD-3).
func (s *Slice) pod(e *sliceEndpoint, in Lookup) *Pod {
	switch {
	case e.pod != "":
		return in.Pod(s.namespace, e.pod)
	case e.alone && len(e.addresses) > 0:
		return in.PodAt(s.namespace, e.addresses[0])
	}
	return nil
}
