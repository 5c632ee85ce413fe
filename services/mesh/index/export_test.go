package index

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/table"
)

// Structure returns everything that pc holds as sorted lines. Equal worlds have
// equal structures, whatever changes led to them.
func (pc *PushContext) Structure() []string {
	var out []string
	line := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	counts := func(what string, c table.Counter) {
		for name, n := range c.All() {
			line("%s %s %d", what, name, n)
		}
	}
	for id, claims := range pc.services.claims.All() {
		line("claims %v %v", id, keysOf(claims))
	}
	for id, s := range pc.services.byID.All() {
		line("service %v %+v", id, *s)
	}
	for name, list := range pc.raw.names.All() {
		line("raw name %v %v", name, keysOf(list))
	}
	for at, list := range pc.raw.cells.All() {
		line("raw cell %v %v", at, keysOf(list))
	}
	line("raw selectors %q", pc.raw.selectors)
	for host, list := range pc.services.byHost.All() {
		line("host %s %v", host, keysOf(list))
	}
	for host, v := range pc.services.views.All() {
		line("view %s %v", host, keysOf(v.services))
		for _, ns := range append(v.views(), "") {
			if s := v.sees(ns); s != nil {
				line("view %s of %q: %v", host, ns, s.Key)
			}
		}
	}
	if x := pc.services.aliases; len(x.said) > 0 {
		line("aliases %v %v %v", x.said, x.target, x.of)
	}
	counts("service scope", pc.services.scopes)
	counts("home", pc.services.homes)
	counts("gRPC", pc.services.grpc)
	for scope, list := range pc.services.lists {
		line("list %q %v", scope, keysOf(list))
	}
	for of, list := range pc.endpoints.slices.All() {
		line("slices %v %v", of, keysOf(list))
	}
	for ns, list := range pc.endpoints.workloads.All() {
		line("workloads %s %v", ns, keysOf(list))
	}
	for ns, list := range pc.endpoints.selecting.All() {
		line("selecting %s %v", ns, keysOf(list))
	}
	for pair, list := range pc.endpoints.byPair.All() {
		line("selecting %v %v", pair, keysOf(list))
	}
	for at, list := range pc.endpoints.addressed.All() {
		line("addressed %v %v", at, keysOf(list))
	}
	for id := range pc.endpoints.listed.All() {
		line("listed %v", id)
	}
	for id, e := range pc.endpoints.byID.All() {
		line("endpoints %v %+v", id, e)
	}
	for id, i := range pc.endpoints.identities.All() {
		line("identities %v %+v", id, *i)
	}
	for ns, list := range pc.services.homeOf.All() {
		line("services of %s %v", ns, keysOf(list))
	}
	for ns, list := range pc.virtualServices.homeOf.All() {
		line("virtual services of %s %v", ns, keysOf(list))
	}
	for ns, list := range pc.sidecars.byNamespace.All() {
		line("sidecars of %s %v", ns, keysOf(list))
	}
	for n, s := range pc.sidecars.byName.All() {
		line("sidecar %v %v: %v", n, s.Key, s.Spec)
	}
	line("mutual %d %d", pc.endpoints.mutual, pc.rules.mutual)
	for n, v := range pc.virtualServices.byName.All() {
		line("virtual service %v %+v to %v: %v", n, *v.VirtualServiceHead, v.exportTo, v.spec)
	}
	for at, list := range pc.virtualServices.seen.All() {
		line("seen %v %v", at, keysOf(list))
	}
	for at, list := range pc.virtualServices.only.All() {
		line("only %v %v", at, keysOf(list))
	}
	for host, list := range pc.virtualServices.hosts.All() {
		line("routed %s %v", host, keysOf(list))
	}
	counts("virtual service scope", pc.virtualServices.scopes)
	for t, sources := range pc.virtualServices.sources {
		for text, list := range sources.All() {
			line("source %d %s %v", t, text, keysOf(list))
		}
	}
	for at, list := range pc.rules.merged.All() {
		for _, m := range list {
			line("rule %v %v to %v of %v: %v", at, m.id, m.exportTo, keysOf(m.rules), m.spec)
		}
	}
	for ns, hosts := range pc.rules.wild.All() {
		line("wild %s %v", ns, hosts)
	}
	for host, namespaces := range pc.rules.exact.All() {
		line("exact %s %v", host, namespaces)
	}
	for at, ids := range pc.rules.credentials.All() {
		line("credentials %v %v", at, ids)
	}
	for at, ids := range pc.rules.placed.All() {
		line("placed %v %v", at, ids)
	}
	for k, d := range pc.services.near.All() {
		line("near %v %s", k, d)
	}
	counts("compared", pc.rules.compared)
	counts("places", pc.services.places)
	for at, ids := range pc.rules.connections.All() {
		line("connections %v %v", at, ids)
	}
	for at, names := range pc.rules.reach.All() {
		line("reach %v %v", at, names)
	}
	counts("rule scope", pc.rules.scopes)
	for text, list := range pc.gateways.bySelector.All() {
		line("gateways %s %v", text, keysOf(list))
	}
	for ns, list := range pc.peers.byNamespace.All() {
		line("peers %s %v", ns, keysOf(list))
	}
	counts("cluster", pc.services.clusters)
	for id, s := range pc.endpoints.spreads.All() {
		line("spread %v %+v", id, *s)
	}
	x := &pc.networks
	line("networks %v %v %v %v", x.registries, x.blocks, x.labelled, x.gateways.sorted)
	for k, s := range x.entrances.All() {
		line("entrance %v %s %v", k, s.host, s.service)
	}
	for k, n := range x.nodes.All() {
		line("node %v %+v", k, *n)
	}
	for a, ds := range pc.problems.All() {
		line("problem %v %+v", a, ds)
	}
	slices.Sort(out)
	return out
}

func keysOf[T table.Keyed](list []T) []ident.Key {
	keys := make([]ident.Key, len(list))
	for i, m := range list {
		keys[i] = m.MemberKey()
	}
	return keys
}

// Scope returns the canonical scope of a namespace.
func (pc *PushContext) Scope(namespace string) Scope {
	return Scope{
		Services:        scopeOf(pc.services.scopes, namespace),
		VirtualServices: scopeOf(pc.virtualServices.scopes, namespace),
		Rules:           scopeOf(pc.rules.scopes, namespace),
	}
}

// Imports returns the scopes of all Sidecars, for proxies of all of these namespaces.
func (pc *PushContext) Imports(namespaces []string) []Scope {
	var all []Scope
	for _, s := range pc.sidecars.byName.All() {
		for _, ns := range namespaces {
			all = append(all, Scope{Rules: scopeOf(pc.rules.scopes, ns), Imports: s.text(ns)})
		}
	}
	return all
}

// ServiceIDs returns the IDs of all services.
func (pc *PushContext) ServiceIDs() []ServiceID {
	var ids []ServiceID
	for id := range pc.services.byID.All() {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ServiceID) int {
		return slices.Compare([]string{a.Namespace, a.Hostname}, []string{b.Namespace, b.Hostname})
	})
	return ids
}
