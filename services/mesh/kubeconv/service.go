package kubeconv

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// Service converts a Service (SVC-1 to SVC-4, SVC-7, SVC-9 to SVC-16). domainSuffix is
// the cluster's domain; empty means the MeshPolicy's.
func Service(s *corev1.Service, domainSuffix string) *registryv1.Service {
	out := &registryv1.Service{
		DomainSuffix:             domainSuffix,
		Labels:                   s.Labels,
		Selector:                 s.Spec.Selector,
		ExportTo:                 list(s.Annotations[exportToAnnotation]),
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		ServiceAccounts:          list(s.Annotations[serviceAccountsAnnotation]),
		Identities:               list(s.Annotations[canonicalAccountsAnnotation]),
		TrafficDistribution:      distribution(s),
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		out.InternalTrafficLocal = *p == corev1.ServiceInternalTrafficPolicyLocal
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, servicePort(p))
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		out.ExternalName = strings.TrimSuffix(s.Spec.ExternalName, ".")
		return out
	}
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 && s.Spec.ClusterIP != "" {
		ips = []string{s.Spec.ClusterIP}
	}
	out.Headless = slices.Contains(ips, corev1.ClusterIPNone)
	if !out.GetHeadless() {
		out.Addresses = ips
	}
	outside(out, s)
	return out
}

func servicePort(p corev1.ServicePort) *registryv1.ServicePort {
	out := &registryv1.ServicePort{
		Number: unsigned(p.Port), Name: p.Name,
		AppProtocol: value(p.AppProtocol), Transport: transport(p.Protocol),
	}
	if p.TargetPort.Type == intstr.String {
		out.TargetPortName = p.TargetPort.StrVal
	} else {
		out.TargetPort = unsigned(p.TargetPort.IntVal)
	}
	return out
}

// transport is empty for TCP, which is the default.
func transport(p corev1.Protocol) string {
	if p == corev1.ProtocolTCP {
		return ""
	}
	return string(p)
}

// distribution returns the preferred distance of endpoints (SVC-11).
func distribution(s *corev1.Service) string {
	switch d := cmp.Or(value(s.Spec.TrafficDistribution), s.Annotations[distributionAnnotation]); d {
	case preferClose:
		return distributionZone
	case distributionZone, distributionNode:
		return d
	}
	return ""
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// unsigned converts a port. A negative one becomes 0, which validation rejects.
func unsigned(n int32) uint32 { return uint32(max(n, 0)) }

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

// OwnEndpoints reports whether a Service selects no pods, so that its owner writes
// its endpoints.
func OwnEndpoints(s *corev1.Service) bool {
	return len(s.Spec.Selector) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Unmirrored returns the diagnostic for the Endpoints of a Service with
// OwnEndpoints and without any EndpointSlice, or nil if they are empty: meshlog
// reads only slices, and no controller has created one. Watching Endpoints for
// this is too expensive; the caller reads them for such Services.
func Unmirrored(e *corev1.Endpoints) *problem.Diagnostic { //nolint:staticcheck // finds uses of the deprecated type
	if len(e.Subsets) == 0 {
		return nil
	}
	d := &problem.Diagnostic{
		Severity: problem.Warning, Code: "unmirrored",
		Key:    ident.Key{Kind: "Service", Namespace: e.Namespace, Name: e.Name},
		Reason: "its endpoints are only in an Endpoints object, for which no controller has created an EndpointSlice",
		Advice: "write an EndpointSlice with the label " + SliceLabel + ": " + e.Name,
		Effect: "the Service has no endpoints",
	}
	if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		d.Advice = "remove the label " + discoveryv1.LabelSkipMirror + " from the Endpoints, or write an EndpointSlice"
	}
	return d
}
