package kubeconv

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
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
