package policy

import (
	"fmt"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/callee"
)

// authorizerOf returns the authorizer that the CUSTOM policies of a workload name. If
// there is none that its proxy can ask, it returns why, for each of the policies.
func authorizerOf(r *index.Reader, policies []world.Object, from callee.Caller) (*authorizer, []problem.Diagnostic) {
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

// find sets where proxies reach an authorizer, or says why they cannot, and what to do.
func (a *authorizer) find(r *index.Reader, service string, port uint32, from callee.Caller) (reason, advice string) {
	found, reason, advice := callee.Find(r, service, port, a.grpc != nil, from)
	a.host, a.cluster = found.Host, found.Cluster
	return reason, advice
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
