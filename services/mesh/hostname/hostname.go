// Package hostname completes the short names of hosts, as Istio does: they stand
// for Kubernetes Services.
package hostname

import (
	"cmp"
	"strings"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Full completes a short host with the namespace of its object: a name without
// a dot is a Kubernetes Service (VS-1, DR-3), unless it is an IPv6 address.
func Full(host, namespace, domainSuffix string) string {
	if host == "" || host == "*" || strings.ContainsAny(host, ".:") {
		return host
	}
	return ofKubernetes(host, namespace, domainSuffix)
}

// OfService returns the host of a Service. domainSuffix is the mesh's; a Service
// may have another one.
func OfService(k ident.Key, m *registryv1.Service, domainSuffix string) string {
	if m.GetHostname() != "" {
		return m.GetHostname()
	}
	return ofKubernetes(k.Name, k.Namespace, cmp.Or(m.GetDomainSuffix(), domainSuffix))
}

// Home returns the namespace in which a host has a bare name: that of a host
// like name.namespace.svc.cluster.local, whether a Service or a ServiceEntry
// has it (SE-16). Others have none.
func Home(host, domainSuffix string) string {
	short, ok := strings.CutSuffix(host, Suffix(domainSuffix))
	name, namespace, qualified := strings.Cut(short, ".")
	if !ok || !qualified || strings.Contains(namespace, ".") || strings.HasPrefix(name, "*") {
		return ""
	}
	return namespace
}

// Suffix returns how the full names of Kubernetes Services end.
func Suffix(domainSuffix string) string { return ".svc." + domainSuffix }

func ofKubernetes(name, namespace, domainSuffix string) string {
	return name + "." + namespace + Suffix(domainSuffix)
}
