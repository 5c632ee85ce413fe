package model

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
)

// Structure is all that pc holds, a line each, sorted: equal worlds have equal
// structures, however they came about.
func (pc *PushContext) Structure() []string {
	var out []string
	line := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	counts := func(what string, c counter) {
		for name, n := range c.all() {
			line("%s %s %d", what, name, n)
		}
	}
	for id, claims := range pc.services.claims.all() {
		line("claims %v %v", id, keysOf(claims))
	}
	for id, s := range pc.services.byID.all() {
		line("service %v %+v", id, *s)
	}
	for host, list := range pc.services.byHost.all() {
		line("host %s %v", host, keysOf(list))
	}
	for host, v := range pc.services.views.all() {
		line("view %s %v", host, keysOf(v.services))
		for _, ns := range append(v.views(), "") {
			if s := v.sees(ns); s != nil {
				line("view %s of %q: %v", host, ns, s.Key)
			}
		}
	}
	if x := pc.services.aliases; len(x.said) > 0 {
		line("aliases %v %v %v %v", x.said, x.target, x.of, x.loops)
	}
	counts("service scope", pc.services.scopes)
	counts("home", pc.services.homes)
	for scope, list := range pc.services.lists {
		line("list %q %v", scope, keysOf(list))
	}
	for of, list := range pc.endpoints.slices.all() {
		line("slices %v %v", of, keysOf(list))
	}
	for ns, list := range pc.endpoints.workloads.all() {
		line("workloads %s %v", ns, keysOf(list))
	}
	for ns, list := range pc.endpoints.selecting.all() {
		line("selecting %s %v", ns, keysOf(list))
	}
	for id, e := range pc.endpoints.byID.all() {
		line("endpoints %v %+v", id, e)
	}
	for n, v := range pc.virtualServices.byName.all() {
		line("virtual service %v %+v to %v: %v", n, *v.VirtualServiceHead, v.exportTo, v.spec)
	}
	for at, list := range pc.virtualServices.seen.all() {
		line("seen %v %v", at, keysOf(list))
	}
	for at, list := range pc.virtualServices.only.all() {
		line("only %v %v", at, keysOf(list))
	}
	for host, list := range pc.virtualServices.hosts.all() {
		line("routed %s %v", host, keysOf(list))
	}
	counts("virtual service scope", pc.virtualServices.scopes)
	for t, c := range pc.virtualServices.sources {
		counts(fmt.Sprint("sources ", t), c)
	}
	for i, m := range pc.virtualServices.matches {
		line("match %d %s", i, m.text)
	}
	for at, list := range pc.rules.merged.all() {
		for _, m := range list {
			line("rule %v %v to %v of %v: %v", at, m.id, m.exportTo, keysOf(m.rules), m.spec)
		}
	}
	for ns, hosts := range pc.rules.wild.all() {
		line("wild %s %v", ns, hosts)
	}
	for host, namespaces := range pc.rules.exact.all() {
		line("exact %s %v", host, namespaces)
	}
	for at, names := range pc.rules.reach.all() {
		line("reach %v %v", at, names)
	}
	counts("rule scope", pc.rules.scopes)
	for text, list := range pc.gateways.bySelector.all() {
		line("gateways %s %v", text, keysOf(list))
	}
	for i, s := range pc.gateways.selectors {
		line("gateway selector %d %s", i, s.text)
	}
	counts("cluster", pc.services.clusters)
	for id, s := range pc.endpoints.spreads.all() {
		line("spread %v %+v", id, *s)
	}
	x := &pc.networks
	line("networks %v %v %v %v", x.registries, x.blocks, x.labelled, x.gateways.sorted)
	for k, s := range x.entrances.all() {
		line("entrance %v %v %+v", k, s.labelled, *s)
	}
	for k, n := range x.nodes.all() {
		line("node %v %+v", k, *n)
	}
	for a, ds := range pc.problems.all() {
		line("problem %v %+v", a, ds)
	}
	slices.Sort(out)
	return out
}

func keysOf[T keyed](list []T) []ident.Key {
	keys := make([]ident.Key, len(list))
	for i, m := range list {
		keys[i] = m.key()
	}
	return keys
}

// Scope is the canonical scope of a namespace.
func (pc *PushContext) Scope(namespace string) Scope {
	return Scope{
		Services:        pc.services.scopes.scope(namespace),
		VirtualServices: pc.virtualServices.scopes.scope(namespace),
		Rules:           pc.rules.scopes.scope(namespace),
	}
}

// ServiceIDs is the names of all services.
func (pc *PushContext) ServiceIDs() []ServiceID {
	var ids []ServiceID
	for id := range pc.services.byID.all() {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ServiceID) int {
		return slices.Compare([]string{a.Namespace, a.Hostname}, []string{b.Namespace, b.Hostname})
	})
	return ids
}
