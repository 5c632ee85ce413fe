package index

import (
	"slices"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/services/mesh/kind"
)

// asks reports whether one of the policies has the action CUSTOM: an external authorizer
// decides about what it matches (AZ-9).
func asks(policies []*policy) bool {
	return slices.ContainsFunc(policies, func(p *policy) bool {
		m, ok := p.Message.(*security.AuthorizationPolicy)
		return ok && m.GetAction() == security.AuthorizationPolicy_CUSTOM
	})
}

// ask reports whether one of the policies with these selectors has the action CUSTOM.
func (x *policyIndex) ask(selected SelectorSet) bool {
	return slices.ContainsFunc(selected.Selectors(), func(text string) bool { return asks(x.bySelector.Get(selectsOf(text))) })
}

// fetches reports whether proxies fetch keys of token issuers for one of the policies
// (POL-13).
func fetches(policies []*policy) bool {
	return slices.ContainsFunc(policies, func(p *policy) bool { _, byProxies, _ := kind.RequestAuthentication(p.Message); return byProxies })
}

// fetch reports whether proxies fetch keys for one of the policies with these selectors.
func (x *policyIndex) fetch(selected SelectorSet) bool {
	return slices.ContainsFunc(selected.Selectors(), func(text string) bool { return fetches(x.bySelector.Get(selectsOf(text))) })
}

// homesOf returns namespaces with a proxy of each class that policies make: those of the
// root namespace ask authorizers, and fetch keys, from all scopes.
func (pc *PushContext) homesOf(group selects, policies []*policy) []string {
	homes := []string{group.namespace}
	if group.namespace == pc.settings.rootNamespace && !group.local && (asks(policies) || fetches(policies)) {
		homes = append(append(homes, ""), pc.services.scopes.Names()...)
		if fetches(policies) {
			homes = append(homes, pc.rules.scopes.Names()...)
		}
	}
	return sortUnique(homes)
}

// ServicesOfHost returns the services that have a host, at most one of each namespace,
// and the one of them that a scope sees; nil: none. With a Sidecar it is one that it imports.
func (r *Reader) ServicesOfHost(s Scope, host string) (all []*Service, seen *Service) {
	r.note(Input{Kind: InputHost, A: host})
	view := r.pc.services.views.Get(host)
	if s.Imports != "" {
		return view.services, r.importedService(s.Imports, host)
	}
	return view.services, view.sees(s.Services)
}
