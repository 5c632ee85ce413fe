package kubeconv

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// SliceLabel is the label by which EndpointSlices name their Service. Those
// without it are not Kubernetes' own business.
const SliceLabel = discoveryv1.LabelServiceName

// Lookup finds what an EndpointSlice refers to; all return nil where it is not
// known, or not known yet (EPS-4). A nil Lookup knows nothing.
type Lookup interface {
	Pod(namespace, name string) *Pod
	// PodAt is the one pod of the namespace that has an IP for itself (of its
	// OwnAddresses); nil if there are several.
	PodAt(namespace, ip string) *Pod
	// Locality is that of a node.
	Locality(node string) *registryv1.Locality
}

// Slice is what of an EndpointSlice is worth keeping in memory: what it is
// converted by. Nobody writes to it.
type Slice struct {
	namespace, service string
	ports              []*registryv1.EndpointPort
	endpoints          []sliceEndpoint
	bad                *problem.Diagnostic // it holds what is no endpoint
}

type sliceEndpoint struct {
	addresses  []string
	node, zone string
	pod        string // by name
	alone      bool   // it says of nothing that it is it
	health     registryv1.Health
}

// Slice reads an EndpointSlice (EPS-1, EPS-3).
func (k *Keeper) Slice(s *discoveryv1.EndpointSlice) *Slice {
	out := &Slice{namespace: k.text(s.Namespace), service: k.text(s.Labels[SliceLabel])}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		out.bad = &problem.Diagnostic{
			Field:  "addressType",
			Reason: "endpoints are IP addresses here; for host names write a ServiceEntry with resolution DNS",
		}
		return out
	}
	for _, p := range s.Ports {
		if p.Port == nil || transport(value(p.Protocol)) != "" {
			continue // "all ports", and UDP: nothing that a proxy is told
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
			addresses: e.Addresses, node: k.text(value(e.NodeName)), zone: k.text(value(e.Zone)),
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

// References are the pods that a slice's endpoints refer to: by name, or by IP
// where they name nothing. When one of those changes, the slice is to be
// converted again (EPS-4), and so when a node does that it is on.
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

// Service is the name of the one that the slice is of; empty: of none.
func (s *Slice) Service() string { return s.service }

// IsOn says that an endpoint is on one of some nodes, as far as the slice says it.
func (s *Slice) IsOn(some func(node string) bool) bool {
	for i := range s.endpoints {
		if some(s.endpoints[i].node) {
			return true
		}
	}
	return false
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
	out := &registryv1.Endpoint{Addresses: e.addresses, Health: e.health, Node: e.node, Workload: e.pod}
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

// pod finds the pod that an endpoint is: the one that it names, and only where
// it names nothing the one that has its IP for itself (POD-3).
func (s *Slice) pod(e *sliceEndpoint, in Lookup) *Pod {
	switch {
	case e.pod != "":
		return in.Pod(s.namespace, e.pod)
	case e.alone && len(e.addresses) > 0:
		return in.PodAt(s.namespace, e.addresses[0])
	}
	return nil
}
