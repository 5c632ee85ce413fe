package policy

import (
	"fmt"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/piece"
)

// authorizerOf returns the authorizer that the CUSTOM policies of a workload name. If
// there is none that its proxy can ask, it returns why, for each of the policies.
func authorizerOf(r *index.Reader, policies []world.Object, from caller) (*authorizer, []problem.Diagnostic) {
	policies = customPolicies(policies)
	if ds := conflicts(policies); len(ds) > 0 {
		return nil, ds
	}
	name := providerOf(policies[0])
	all := r.Mesh().GetExtensionProviders()
	i := slices.IndexFunc(all, func(p *meshconfig.MeshConfig_ExtensionProvider) bool { return p.GetName() == name })
	if i < 0 {
		return nil, complain(policies, fmt.Sprintf("MeshConfig has no provider %q", name), "add it to extensionProviders, or name another one")
	}
	a := &authorizer{name: name, http: all[i].GetEnvoyExtAuthzHttp(), grpc: all[i].GetEnvoyExtAuthzGrpc()}
	service, port := a.http.GetService(), a.http.GetPort()
	if a.grpc != nil {
		service, port = a.grpc.GetService(), a.grpc.GetPort()
	}
	if a.http == nil && a.grpc == nil {
		return nil, complain(policies, fmt.Sprintf("the provider %q of MeshConfig is no external authorizer", name), "name one of kind envoyExtAuthzHttp or envoyExtAuthzGrpc")
	}
	reason, advice := a.find(r, service, port, from)
	if reason != "" {
		return nil, complain(policies, fmt.Sprintf("the provider %q cannot be asked: %s", name, reason), advice)
	}
	return a, nil
}

// What names a service that proxies call, for people.
const (
	provider = "the provider"
	keysURI  = "jwksUri"
)

// find sets where proxies reach an authorizer, or says why they cannot, and what to do.
func (a *authorizer) find(r *index.Reader, service string, port uint32, from caller) (reason, advice string) {
	namespace, host, both := strings.Cut(service, "/")
	if !both {
		namespace, host = "", namespace
	}
	s, reason, advice := serviceOf(r, namespace, host, from, provider)
	if s == nil {
		return reason, advice
	}
	p, reason, advice := portOf(s, host, port, from, provider)
	switch {
	case reason != "":
		return reason, advice
	case a.grpc != nil && !p.Protocol.IsHTTP2():
		return fmt.Sprintf("port %d of the service %s/%s is not known as HTTP/2, which gRPC needs", port, s.Namespace, host),
			"give the port a name that begins with grpc, or the protocol GRPC"
	}
	a.host, a.cluster = host, piece.ClusterName(host, "", port)
	return "", ""
}

// portOf returns the port of a service whose cluster proxies can call themselves, or says
// why there is none. named is what names the port.
func portOf(s *index.Service, host string, port uint32, from caller, named string) (p index.Port, reason, advice string) {
	name := s.Namespace + "/" + host
	p, known := s.Port(port)
	switch {
	case s.AliasOf != "":
		return p, fmt.Sprintf("the service %s is another name of %s", name, s.AliasOf), "write that host into " + named
	case !known:
		return p, fmt.Sprintf("the service %s has no port %d", name, port), "correct " + named + "'s port, or add it to the service"
	case s.Resolution == index.DynamicDNS, s.Resolution == index.Passthrough && !(from.router && s.Headless):
		return p, fmt.Sprintf("the service %s has no endpoints of its own: callers choose the address", name),
			"name a service with an address, or one with resolution STATIC or DNS"
	}
	return p, "", ""
}

// serviceOf returns the service that an authorizer or another object names. A proxy sees one service of a
// host, and its cluster has the host's name only: it must be the service that is meant,
// so that a namespace with a service of that host does not decide about its own requests.
// A host without namespace is that of the only service, as in Istio.
func serviceOf(r *index.Reader, namespace, host string, from caller, named string) (s *index.Service, reason, advice string) {
	all, seen := r.ServicesOfHost(from.services, host)
	if namespace != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(s *index.Service) bool { return s.Namespace != namespace })
	}
	switch {
	case len(all) == 0 && namespace != "":
		return nil, fmt.Sprintf("namespace %s has no service %s", namespace, host), "add the service, or correct " + named
	case len(all) == 0:
		return nil, fmt.Sprintf("there is no service %s", host), "add the service, or correct " + named
	case len(all) > 1:
		var names []string
		for _, s := range all {
			names = append(names, s.Namespace)
		}
		slices.Sort(names)
		advice = "name a host that no other namespace has"
		if named == provider {
			advice = "write NAMESPACE/" + host + " into the provider"
		}
		return nil, fmt.Sprintf("the namespaces %s have a service %s", strings.Join(names, ", "), host), advice
	case seen == nil && from.services.Imports != "":
		sidecar, _, _ := strings.Cut(from.services.Imports, " ")
		return nil, fmt.Sprintf("the egress hosts of Sidecar %s do not import %s/%s", sidecar, all[0].Namespace, host), "add the host to them"
	case seen == nil:
		return nil, fmt.Sprintf("the service %s/%s is not exported to %s", all[0].Namespace, host, from.sees()), "export it to them"
	case seen.ServiceID != all[0].ServiceID:
		return nil, fmt.Sprintf("for proxies of %s the host %s is a service of namespace %s", from.sees(), host, seen.Namespace),
			"name a host that no other namespace has"
	}
	return all[0], "", ""
}

// customPolicies returns those of the policies that name an authorizer, each once: one
// with several targets may select a workload by two of them.
func customPolicies(policies []world.Object) []world.Object {
	seen := map[ident.Key]bool{}
	return slices.DeleteFunc(slices.Clone(policies), func(p world.Object) bool {
		m, ok := p.Message.(*security.AuthorizationPolicy)
		twice := seen[p.Key]
		seen[p.Key] = true
		return twice || !ok || m.GetAction() != security.AuthorizationPolicy_CUSTOM
	})
}

func providerOf(p world.Object) string {
	return p.Message.(*security.AuthorizationPolicy).GetProvider().GetName()
}

// conflicts reports policies of one workload that name different providers.
func conflicts(policies []world.Object) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, p := range policies {
		i := slices.IndexFunc(policies, func(o world.Object) bool { return providerOf(o) != providerOf(p) })
		if i < 0 {
			return nil // they are all alike
		}
		other := policies[i]
		ds = append(ds, complain([]world.Object{p},
			fmt.Sprintf("the %s, which selects some of the same workloads, names the provider %q", other.Key, providerOf(other)),
			"name one provider in all CUSTOM policies that select a workload")...)
	}
	return ds
}

// complain reports a problem of each policy.
func complain(policies []world.Object, reason, advice string) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, p := range policies {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "provider", Key: p.Key, Field: "spec.provider.name", Reason: reason, Advice: advice,
		})
	}
	return ds
}

// withEffect says what happens meanwhile.
func withEffect(ds []problem.Diagnostic, effect string) []problem.Diagnostic {
	for i := range ds {
		ds[i].Effect = effect
	}
	return ds
}
