package index

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/table"
)

// classOf returns the class of a kind of client in a namespace, without what
// depends on the proxy itself.
func (pc *PushContext) classOf(client Client, namespace string) ProxyClass {
	scope := Scope{
		Services:        scopeOf(pc.services.scopes, namespace),
		VirtualServices: scopeOf(pc.virtualServices.scopes, namespace),
		Rules:           scopeOf(pc.rules.scopes, namespace),
	}
	clusters := Scope{Services: scope.Services, Rules: scope.Rules}
	c := ProxyClass{
		CDS: CDSClass{Client: client, Scope: clusters},
		EDS: EDSClass{Client: client, Scope: clusters},
		LDS: LDSClass{Client: client, Scope: Scope{Services: scope.Services, VirtualServices: scope.VirtualServices}},
		RDS: RDSClass{Client: client, Scope: scope},
	}
	if client != ClientGRPC && pc.rules.shapeConnections() {
		c.LDS.Scope.Rules = scope.Rules
	}
	if client == ClientSidecar {
		c.RDS.Namespace = scopeOf(pc.services.homes, namespace)
	}
	return c
}

// Classify returns the class of p: in the view of the latest pin that selects it, or in
// that of all other proxies. It costs one match for each distinct selector.
func Classify(pc *PushContext, p *proxy.Proxy) ProxyClass {
	if v := pc.pinned(p); v != nil {
		return classify(v.pc, p).InView(v.pin.ID)
	}
	return classify(pc, p)
}

func classify(pc *PushContext, p *proxy.Proxy) ProxyClass {
	client := ClientRouter
	switch {
	case p.GRPC:
		client = ClientGRPC
	case p.Type == proxy.Sidecar:
		client = ClientSidecar
	}
	c := pc.classOf(client, p.Namespace)
	if client != ClientRouter {
		c.setSidecar(pc.sidecars.of(pc.settings.rootNamespace, p.Namespace, p.Labels), p.Namespace)
	}
	c.EDS.View = pc.viewOf(p)
	if client == ClientRouter {
		selected := pc.gateways.selected(p)
		c.setGateways(selected, pc.listensOf(p, selected))
	}
	if client == ClientSidecar {
		c.LDS.Cluster, c.RDS.Cluster = c.EDS.View.Cluster, c.EDS.View.Cluster
	}
	if client == ClientGRPC {
		c.setServer(pc, p)
	}
	if client == ClientSidecar {
		c.LDS.Bind = p.Text("INTERCEPTION_MODE") == "NONE"
		c.setInbound(pc, p)
	}
	c.RDS.LargeRegexes = pc.HasLargeRegexes() && client != ClientGRPC && p.RegexLimit() >= re2.Raised
	source := func(m *sourceMatch) bool { return m.matches(p) }
	c.LDS.Sources, c.RDS.Sources = pc.virtualServices.sourcesOf(ident.LDS, source), pc.virtualServices.sourcesOf(ident.RDS, source)
	raw := pc.raw.selected(p)
	c.CDS.Raw, c.EDS.Raw, c.LDS.Raw, c.RDS.Raw = raw[ident.CDS], raw[ident.EDS], raw[ident.LDS], raw[ident.RDS]
	c.selectRules(pc.rules.selected(p))
	c.passThrough(pc)
	c.certify(pc, p.Certificates())
	if client != ClientGRPC {
		c.setPolicies(pc, p, client)
	}
	if client == ClientSidecar || c.LDS.Gateways != "" {
		c.LDS.Telemetry = pc.telemetry.selected(pc.settings, p)
		if pc.namesService(p.Namespace, c.LDS.Telemetry) {
			c.LDS.ServiceName = p.Cluster
		}
	}
	c.setFilters(&pc.filters, client, func(o *chooser) bool { return o.matches(p, pc.settings.rootNamespace) })
	switch {
	case client == ClientGRPC:
	case slices.Contains(pc.settings.trustDomains, p.Identity.TrustDomain):
		c.SDS = c.secretsIn(client, p.Namespace)
	case c.LDS.Gateways != "": // names of files only, so they are for any client
		c.SDS = SDSClass{Client: client, Gateways: c.LDS.Gateways, Listens: c.LDS.Listens}
	}
	if from := p.Certificates(); from.Chain != "" && (c.LDS.Certificates == from || c.CDS.Certificates == from) {
		c.SDS.Certificates = from // as above
	}
	if client == ClientSidecar && c.LDS.Ingress != "" {
		if s := pc.sidecars.of(pc.settings.rootNamespace, p.Namespace, p.Labels); s.endsTLS() {
			c.SDS.Ingress = c.LDS.Ingress
		}
	}
	if client != ClientGRPC && p.WantsNames() {
		c.answerNames()
	}
	return c.Released(pc.world.Releases(p.Client()))
}

// answerNames makes the class one of an agent that answers names by DNS (NDS-1).
func (c *ProxyClass) answerNames() {
	c.NDS = NDSClass{Client: c.CDS.Client, Names: true, Scope: Scope{Services: c.CDS.Scope.Services, Imports: c.CDS.Scope.Imports}, View: c.EDS.View}
	c.NDS.View.Place = Place{} // names are the same in every zone
}

// secretsIn returns the class of secrets of clients in a namespace that have shown an
// identity of the mesh. Most sidecars can have none, and share one class.
func (c *ProxyClass) secretsIn(client Client, namespace string) SDSClass {
	if c.LDS.Gateways == "" && c.CDS.Scope.Selected == "" {
		return SDSClass{Roots: true}
	}
	scope := Scope{Rules: c.CDS.Scope.Rules, Selected: c.CDS.Scope.Selected}
	return SDSClass{Client: client, Roots: true, Scope: scope, Gateways: c.LDS.Gateways, Listens: c.LDS.Listens, Namespace: namespace}
}

// setPolicies sets the policies that select p. A router without Gateways has no listener
// that they could hold for.
func (c *ProxyClass) setPolicies(pc *PushContext, p *proxy.Proxy, client Client) {
	if client == ClientRouter && c.LDS.Gateways == "" {
		return
	}
	all, authorization := pc.policies.selected(pc.settings, p)
	c.ECDS, c.LDS.Policies = pc.policiesIn(client, p.Namespace, all), authorization
	if c.ECDS.Fetches {
		c.ECDS.Scope = c.CDS.Scope
	}
	if imports := c.CDS.Scope.Imports; imports != "" && (c.ECDS.Fetches || pc.policies.ask(all)) {
		c.ECDS.Services, c.ECDS.Scope.Imports = "", imports
	}
	c.ECDS.PrincipalNames, c.LDS.PrincipalNames = p.PrincipalNames && all != "", p.PrincipalNames && authorization != ""
}

// policiesIn returns the class of policies of clients in a namespace. Those that none
// selects share one class.
func (pc *PushContext) policiesIn(client Client, namespace string, selected SelectorSet) ECDSClass {
	if selected == "" {
		return ECDSClass{}
	}
	c := ECDSClass{Client: client, Namespace: namespace, Selected: selected}
	if pc.policies.ask(selected) {
		c.Services = scopeOf(pc.services.scopes, namespace)
	}
	if pc.policies.fetch(selected) {
		c.Fetches = true
		c.Scope = Scope{Services: scopeOf(pc.services.scopes, namespace), Rules: scopeOf(pc.rules.scopes, namespace)}
	}
	return c
}

// certify sets from where a client has its certificate of the mesh, where that makes a
// difference.
func (c *ProxyClass) certify(pc *PushContext, from proxy.Certificates) {
	if from == (proxy.Certificates{}) {
		return
	}
	if pc.mutual() {
		c.CDS.Certificates, c.EDS.Mutual = from, true
		if c.CDS.Client != ClientGRPC {
			c.LDS.Certificates = from
		}
	}
	if pc.gateways.has(networking.ServerTLSSettings_ISTIO_MUTUAL, c.LDS.Gateways) {
		c.LDS.Certificates = from
	}
}

// passThrough sets whether a router forwards connections by the names of clusters. Its
// Listeners then depend on the subsets of rules.
func (c *ProxyClass) passThrough(pc *PushContext) {
	if !pc.gateways.has(networking.ServerTLSSettings_AUTO_PASSTHROUGH, c.LDS.Gateways) {
		return
	}
	c.CDS.AutoPassthrough, c.EDS.AutoPassthrough = true, true
	c.LDS.Scope.Rules, c.LDS.Scope.Selected = c.CDS.Scope.Rules, c.CDS.Scope.Selected
}

// selectRules sets the workload selectors of DestinationRules that the proxy
// matches.
func (c *ProxyClass) selectRules(selected SelectorSet) {
	c.CDS.Scope.Selected, c.EDS.Scope.Selected, c.RDS.Scope.Selected = selected, selected, selected
	if c.LDS.Scope.Rules != "" {
		c.LDS.Scope.Selected = selected
	}
}

// HasLargeRegexes reports whether a VirtualService has a regular expression that a
// stock Envoy refuses.
func (pc *PushContext) HasLargeRegexes() bool { return pc.virtualServices.large > 0 }

// Classes returns the classes that a version must be generated for before it is published:
//   - a router, a sidecar and a gRPC client for the common view, and for each namespace with
//     a view of its own;
//   - routers for each selector of Gateways, in the common view and in the views of the
//     Gateways' namespaces, and those behind Services (routerClasses);
//   - routers and sidecars for each selector of policies, and gRPC servers where the
//     selector's namespace has a port for gRPC;
//   - sidecars for each selector of Telemetries;
//   - sidecars and routers for each selection of EnvoyFilters, and for each selector of
//     Gateways that goes with it;
//   - a sidecar and a gRPC client for each Sidecar;
//   - a sidecar that matches every source;
//   - a sidecar and a gRPC server whose workload has ports of all kinds;
//   - sidecars and gRPC clients of each cluster and network;
//   - if there is mutual TLS of the mesh, all of these for proxies with an agent too;
//   - agents that answer names for all sidecars;
//   - if there are expressions that stock Envoys refuse, all of these for Envoys that take
//     them too.
//
// They have no raw resources, which are the same for every proxy that gets them.
func (pc *PushContext) Classes() []ProxyClass {
	namespaces := []string{""}
	for _, c := range []table.Counter{pc.services.scopes, pc.services.homes, pc.virtualServices.scopes, pc.rules.scopes} {
		namespaces = append(namespaces, c.Names()...)
	}
	var all []ProxyClass
	seen := make(map[ProxyClass]bool)
	add := func(c ProxyClass) {
		if !seen[c] {
			seen[c] = true
			all = append(all, c)
		}
	}
	for _, ns := range sortUnique(namespaces) {
		for _, client := range []Client{ClientRouter, ClientSidecar, ClientGRPC} {
			add(pc.classOf(client, ns))
			for _, selector := range pc.rules.selectors(ns) {
				c := pc.classOf(client, ns)
				c.selectRules(SelectorSet(selector))
				add(c)
			}
		}
	}
	pc.routerClasses(add)
	pc.policyClasses(add)
	pc.telemetryClasses(add)
	pc.filterClasses(add)
	pc.sidecarClasses(add)
	every := pc.classOf(ClientSidecar, "")
	anyone := func(*sourceMatch) bool { return true }
	every.LDS.Sources, every.RDS.Sources = pc.virtualServices.sourcesOf(ident.LDS, anyone), pc.virtualServices.sourcesOf(ident.RDS, anyone)
	add(every)
	called := pc.classOf(ClientSidecar, "")
	called.anyInbound()
	add(called)
	server := pc.classOf(ClientGRPC, "")
	server.anyServer()
	add(server)
	for _, view := range pc.endpointViews() {
		for _, client := range []Client{ClientSidecar, ClientGRPC} {
			c := pc.classOf(client, "")
			c.EDS.View = view
			if client == ClientSidecar {
				c.LDS.Cluster, c.RDS.Cluster = view.Cluster, view.Cluster
			}
			add(c)
		}
	}
	for _, c := range slices.Clone(all) {
		pc.variants(c, add)
	}
	if pc.HasLargeRegexes() {
		for _, c := range slices.Clone(all) {
			c.RDS.LargeRegexes = c.RDS.Client != ClientGRPC
			add(c)
		}
	}
	return all
}

// policyClasses adds routers, sidecars and gRPC servers for each selector of policies.
func (pc *PushContext) policyClasses(add func(ProxyClass)) {
	for group, policies := range pc.policies.bySelector.All() {
		for _, ns := range pc.homesOf(group, policies) {
			home := ""
			if asks(policies) || fetches(policies) {
				home = ns
			}
			if pc.hasGRPC(group.namespace) {
				server := pc.classOf(ClientGRPC, "")
				server.anyServer()
				server.LDS.Policies = SelectorSet(group.text())
				add(server)
			}
			for _, client := range []Client{ClientRouter, ClientSidecar} {
				c := pc.classOf(client, home)
				c.ECDS = pc.policiesIn(client, ns, SelectorSet(group.text()))
				if client == ClientSidecar && authorizes(policies) { // whose connections they are for
					c.anyInbound()
					c.LDS.Policies = c.ECDS.Selected
				}
				add(c)
			}
		}
	}
}

// hasGRPC reports whether policies of a namespace can be for gRPC servers: a service there,
// or of any namespace for those of the root namespace, has a port that is known as gRPC.
func (pc *PushContext) hasGRPC(namespace string) bool {
	if namespace == pc.settings.rootNamespace {
		return pc.services.grpc.Len() > 0
	}
	return pc.services.grpc.Get(namespace) > 0
}

// variants adds the class of clients like those of c that have a certificate, and that of
// the agents beside them that answer names.
func (pc *PushContext) variants(c ProxyClass, add func(ProxyClass)) {
	if c.CDS.Client == ClientSidecar {
		named := c
		named.answerNames()
		add(ProxyClass{NDS: named.NDS})
	}
	if c.CDS.Client == ClientGRPC {
		c.certify(pc, proxy.Certificates{Provider: "default"})
	} else {
		c.certify(pc, proxy.Certificates{Agent: true})
	}
	add(c)
}

// setOf returns the set of selectors with these texts.
func setOf(texts []string) SelectorSet {
	if len(texts) == 0 {
		return "" // the usual case
	}
	slices.Sort(texts)
	return SelectorSet(strings.Join(texts, "\n"))
}

// selected returns, by type, the selectors of raw resources that match p.
func (x *rawIndex) selected(p *proxy.Proxy) [ident.ResourceTypes]SelectorSet {
	var texts [ident.ResourceTypes][]string
	at := placeOf(p)
	for _, s := range x.selectors {
		if !s.matches(&at, p.Metadata) {
			continue
		}
		for t := range ident.ResourceTypes {
			if len(x.cells.Get(cellKey{t, s.text})) > 0 {
				texts[t] = append(texts[t], s.text)
			}
		}
	}
	var all [ident.ResourceTypes]SelectorSet
	for t := range texts {
		all[t] = setOf(texts[t])
	}
	return all
}

// selected returns the selectors of Gateways that match a router.
func (x *gatewayIndex) selected(p *proxy.Proxy) SelectorSet {
	var texts []string
	for text, gateways := range x.bySelector.All() {
		if matchLabels(gateways[0].Spec.GetSelector(), p.Labels) {
			texts = append(texts, text)
		}
	}
	return setOf(texts)
}

// sourcesOf returns the sources that a proxy matches, of those that affect
// resources of type t.
func (x *virtualServiceIndex) sourcesOf(t ident.ResourceType, is func(*sourceMatch) bool) SelectorSet {
	if x.sources[t].Len() == 0 {
		return "" // true of most meshes
	}
	var texts []string
	for text, matches := range x.sources[t].All() {
		if is(matches[0]) {
			texts = append(texts, text)
		}
	}
	return setOf(texts)
}
