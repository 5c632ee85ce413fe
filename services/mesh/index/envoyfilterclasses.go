package index

import (
	"maps"
	"regexp"
	"slices"
	"strconv"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
)

// Filters returns the selections of EnvoyFilters that matched, of those with patches for
// resources of type t: the argument of Reader.Patches.
func (c ProxyClass) Filters(t ident.ResourceType) SelectorSet {
	return [ident.ResourceTypes]SelectorSet{ident.CDS: c.CDS.Filters, ident.LDS: c.LDS.Filters, ident.RDS: c.RDS.Filters, ident.ECDS: c.ECDS.Filters}[t]
}

// setFilters sets the selections for which is returns true.
func (c *ProxyClass) setFilters(x *filterIndex, client Client, is func(*chooser) bool) {
	if client == ClientGRPC || x.selections.Len() == 0 {
		return // a gRPC client takes few filters, and patches are written for Envoys
	}
	var texts [ident.ResourceTypes][]string
	for s, patches := range x.selections.All() {
		if s.client == client && is(patches[0].chosen) {
			texts[s.t] = append(texts[s.t], s.text)
		}
	}
	c.CDS.Filters, c.LDS.Filters, c.RDS.Filters = setOf(texts[ident.CDS]), setOf(texts[ident.LDS]), setOf(texts[ident.RDS])
	if all := setOf(texts[ident.ECDS]); all != "" {
		c.ECDS.Client, c.ECDS.Filters = client, all
	}
}

// filterClasses adds, for each selection of EnvoyFilters, a sidecar and the routers of each
// Gateway that it may select, with all other selections that such a proxy matches too.
func (pc *PushContext) filterClasses(add func(ProxyClass)) {
	choosers := map[string]*chooser{}
	for s, patches := range pc.filters.selections.All() {
		choosers[s.text] = patches[0].chosen
	}
	root := pc.settings.rootNamespace
	for _, text := range slices.Sorted(maps.Keys(choosers)) {
		like := choosers[text]
		home := like.namespace
		if home == root && !like.local {
			home = "" // any
		}
		c := pc.classOf(ClientSidecar, home)
		c.anyInbound()
		pc.setFiltersLike(&c, ClientSidecar, home, like, like.labels)
		add(c)
		pc.routerFilterClasses(like, home, add)
	}
}

// routerFilterClasses adds the routers that a chooser may choose.
func (pc *PushContext) routerFilterClasses(like *chooser, home string, add func(ProxyClass)) {
	alone := pc.classOf(ClientRouter, home)
	pc.setFiltersLike(&alone, ClientRouter, home, like, like.labels)
	add(alone)
	gateways := maps.Collect(pc.gateways.bySelector.All())
	for _, text := range slices.Sorted(maps.Keys(gateways)) {
		labels := gateways[text][0].Spec.GetSelector()
		if !mayMatchBoth(labels, like.labels) {
			continue
		}
		both := maps.Clone(like.labels)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, labels)
		at := pc.gateways.selected(&proxy.Proxy{Labels: both})
		homes := []string{home}
		for _, g := range gateways[text] {
			if home == "" && !slices.Contains(homes, g.Key.Namespace) {
				homes = append(homes, g.Key.Namespace)
			}
		}
		for _, ns := range homes {
			c := pc.classOf(ClientRouter, ns)
			c.LDS.Gateways, c.RDS.Gateways = at, at
			c.SDS = c.secretsIn(ClientRouter, ns)
			c.passThrough(pc)
			pc.setFiltersLike(&c, ClientRouter, ns, like, both)
			add(c)
		}
	}
}

// setFiltersLike sets the selections of a proxy in a namespace with these labels that a
// chooser chooses.
func (pc *PushContext) setFiltersLike(c *ProxyClass, client Client, namespace string, like *chooser, labels map[string]string) {
	root := pc.settings.rootNamespace
	c.setFilters(&pc.filters, client, func(o *chooser) bool {
		if o.version == nil && len(o.metadata) == 0 || o.text == like.text {
			return o.text == like.text || o.in(namespace, root) && matchLabels(o.labels, labels)
		}
		return false
	})
	if client == ClientSidecar {
		c.withPorts(pc.filters.ports(c))
	}
	filters := c.ECDS.Filters
	c.setPolicies(pc, &proxy.Proxy{Namespace: namespace, Labels: labels}, client) // patches may match what enforces them
	if filters != "" {
		c.ECDS.Client, c.ECDS.Filters = client, filters
	}
}

// portIn matches the port of a workload in the name of a listener, cluster or chain.
var portIn = regexp.MustCompile(`^(?:0\.0\.0\.0_|inbound_.*_|inbound\|)(\d+)(?:\|\|)?$`)

// ports returns the ports of workloads that patches for sidecars of a class name.
func (x *filterIndex) ports(c *ProxyClass) []uint32 {
	named := map[uint32]bool{}
	for s, patches := range x.selections.All() {
		if s.client != ClientSidecar || !slices.Contains(c.Filters(s.t).Selectors(), s.text) {
			continue
		}
		for _, p := range patches {
			l, rc := p.Match.GetListener(), p.Match.GetRouteConfiguration()
			for _, port := range []uint32{l.GetPortNumber(), l.GetFilterChain().GetDestinationPort(), rc.GetPortNumber(), p.Match.GetCluster().GetPortNumber()} {
				named[port] = true
			}
			for _, name := range []string{l.GetName(), l.GetFilterChain().GetName(), rc.GetName(), p.Match.GetCluster().GetName()} {
				if m := portIn.FindStringSubmatch(name); m != nil {
					if port, err := strconv.ParseUint(m[1], 10, 16); err == nil {
						named[uint32(port)] = true
					}
				}
			}
		}
	}
	delete(named, 0)
	return slices.Sorted(maps.Keys(named))
}

// withPorts adds ports of the own workload whose protocol is detected: they have chains of
// every kind.
func (c *ProxyClass) withPorts(ports []uint32) {
	all := c.LDS.Inbound.Ports()
	for _, port := range ports {
		if port <= 65535 && !slices.ContainsFunc(all, func(p InboundPort) bool { return p.Port == port }) {
			all = append(all, InboundPort{Port: port, Protocol: Sniffed, Mode: PeerPermissive, Service: ServiceID{"any", "any"}, ServicePort: 80})
		}
	}
	slices.SortFunc(all, func(a, b InboundPort) int { return int(a.Port) - int(b.Port) })
	c.LDS.Inbound = newInbound(c.LDS.Inbound.Default(), all)
	c.CDS.Inbound = c.LDS.Inbound.Clusters(false)
}
