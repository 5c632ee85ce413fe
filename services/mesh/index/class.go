package index

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/table"
)

// SelectorSet holds the texts of the node selectors that matched a proxy,
// sorted, one per line. A proxy's labels never enter a class, only the
// selectors that they match.
type SelectorSet string

// Selectors returns the texts in the set.
func (s SelectorSet) Selectors() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), "\n")
}

// ProxyClass holds all properties of a proxy that generation may use, by type.
// Proxies of equal class get the same bytes.
type ProxyClass struct {
	CDS CDSClass
	EDS EDSClass
	LDS LDSClass
	RDS RDSClass
	SDS SDSClass `json:",omitzero"`
}

// Client is the kind of a client, as far as it affects what it is served.
type Client uint8

// Kinds of clients.
const (
	ClientRouter Client = iota
	ClientSidecar
	ClientGRPC
)

// CDSClass holds what Clusters depend on.
type CDSClass struct {
	Client  Client
	Scope   Scope // Services, Rules
	Raw     SelectorSet
	Release string // set only if something is quarantined for it; the same in the other types
}

// EDSClass holds what ClusterLoadAssignments depend on.
type EDSClass struct {
	Client  Client
	Scope   Scope // Services, Rules
	View    EndpointView
	Raw     SelectorSet
	Release string
}

// LDSClass holds what Listeners depend on.
type LDSClass struct {
	Client Client
	Scope  Scope // Services, VirtualServices
	// Cluster is the sidecar's Kubernetes cluster, if there are several, because
	// virtual IPs are each cluster's own (SVC-2).
	Cluster string
	// Bind: nothing redirects the sidecar's connections (INTERCEPTION_MODE NONE),
	// so its listeners bind ports of their own (LSN-12).
	Bind bool
	// Sources are the conditions on callers in VirtualServices with TCP routes
	// that the proxy matches (VST-3).
	Sources SelectorSet
	// Gateways are the selectors of Gateways that match a router.
	Gateways SelectorSet
	// Denied: a policy that cannot be enforced selects the router (POL-15).
	Denied  bool `json:",omitempty"`
	Raw     SelectorSet
	Release string
}

// RDSClass holds what RouteConfigurations depend on.
type RDSClass struct {
	Client Client
	Scope  Scope // all
	// Cluster as in LDSClass.
	Cluster string
	// Namespace in which a sidecar calls services by bare names; empty if there
	// are none.
	Namespace string
	// Sources are the conditions on callers in VirtualServices that the proxy
	// matches (VSM-10).
	Sources  SelectorSet
	Gateways SelectorSet
	// LargeRegexes: the Envoy takes regular expressions that a stock one refuses.
	// Set only if there are some.
	LargeRegexes bool
	Denied       bool `json:",omitempty"` // as in LDSClass
	Raw          SelectorSet
	Release      string
}

// SDSClass holds what Secrets depend on. Its zero value is the class of proxies that
// name no secret, and of all that have not shown an identity of the mesh.
type SDSClass struct {
	Client Client
	Scope  Scope // Rules
	// Gateways as in LDSClass. They, and the DestinationRules in Scope, name the
	// secrets that the proxy may have, which are those of its own namespace (SDS-4).
	Gateways  SelectorSet
	Namespace string
	Release   string
}

// Only returns the class of type t: c without everything that concerns other
// types.
func (c ProxyClass) Only(t ident.ResourceType) ProxyClass {
	var only ProxyClass
	switch t {
	case ident.CDS:
		only.CDS = c.CDS
	case ident.EDS:
		only.EDS = c.EDS
	case ident.LDS:
		only.LDS = c.LDS
	case ident.RDS:
		only.RDS = c.RDS
	case ident.SDS:
		only.SDS = c.SDS
	}
	return only
}

// Raw returns the selectors of raw resources of type t that matched.
func (c ProxyClass) Raw(t ident.ResourceType) SelectorSet {
	return [ident.ResourceTypes]SelectorSet{ident.CDS: c.CDS.Raw, ident.EDS: c.EDS.Raw, ident.LDS: c.LDS.Raw, ident.RDS: c.RDS.Raw}[t]
}

// Release returns the client's name and version if something of type t is
// quarantined for it; else "".
func (c ProxyClass) Release(t ident.ResourceType) string {
	return [ident.ResourceTypes]string{ident.CDS: c.CDS.Release, ident.EDS: c.EDS.Release, ident.LDS: c.LDS.Release, ident.RDS: c.RDS.Release, ident.SDS: c.SDS.Release}[t]
}

// Released returns c as the class of clients of that name and version, set for
// each type in which something is quarantined. Generation makes the same for
// all releases.
func (c ProxyClass) Released(release [ident.ResourceTypes]string) ProxyClass {
	c.CDS.Release, c.EDS.Release, c.LDS.Release, c.RDS.Release, c.SDS.Release = release[ident.CDS], release[ident.EDS], release[ident.LDS], release[ident.RDS], release[ident.SDS]
	return c
}

// Encode returns c as bytes, equal for equal classes. It leaves out fields that few
// proxies need, so that a build with more of them names the classes of others alike.
func (c ProxyClass) Encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("a class of texts cannot fail to marshal: %v", err))
	}
	return b
}

// DecodeClass reads the result of Encode in a build with the same classes;
// anything else is an error.
func DecodeClass(b []byte) (ProxyClass, error) {
	var c ProxyClass
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return ProxyClass{}, fmt.Errorf("class: %w", err)
	}
	if !bytes.Equal(c.Encode(), b) {
		return ProxyClass{}, errors.New("class: not as this build writes it")
	}
	return c, nil
}

// String describes a class for people: the kind of client, the namespace whose
// view differs from the common one, cluster and network if they make a
// difference, and the selectors that matched.
func (c ProxyClass) String() string {
	words := []string{c.CDS.Client.String()}
	for _, scope := range []string{c.RDS.Namespace, c.CDS.Scope.Services, c.LDS.Scope.VirtualServices, c.CDS.Scope.Rules} {
		if scope != "" && !slices.Contains(words, scope) {
			words = append(words, scope)
		}
	}
	for _, where := range []string{cmp.Or(c.EDS.View.Cluster, c.LDS.Cluster, c.RDS.Cluster), c.EDS.View.Network} {
		if where != "" {
			words = append(words, "in "+where)
		}
	}
	if c.RDS.LargeRegexes {
		words = append(words, "with large regexes")
	}
	if c.RDS.Denied {
		words = append(words, "denied")
	}
	parts := []string{strings.Join(words, " ")}
	add := func(set SelectorSet) {
		for _, s := range set.Selectors() {
			if !slices.Contains(parts, s) {
				parts = append(parts, s)
			}
		}
	}
	add(c.LDS.Gateways)
	add(c.CDS.Scope.Selected)
	add(c.LDS.Sources)
	add(c.RDS.Sources)
	for t := range ident.ResourceTypes {
		add(c.Raw(t))
	}
	for t := range ident.ResourceTypes {
		if r := c.Release(t); r != "" && !slices.Contains(parts, r) {
			parts = append(parts, r)
		}
	}
	return strings.Join(parts, "; ")
}

// String returns router, sidecar or gRPC.
func (c Client) String() string {
	switch c {
	case ClientSidecar:
		return "sidecar"
	case ClientGRPC:
		return "gRPC"
	}
	return "router"
}

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
	if client == ClientSidecar {
		c.RDS.Namespace = scopeOf(pc.services.homes, namespace)
	}
	return c
}

// Classify returns the class of p. It costs one match for each distinct
// selector.
func Classify(pc *PushContext, p *proxy.Proxy) ProxyClass {
	client := ClientRouter
	switch {
	case p.GRPC:
		client = ClientGRPC
	case p.Type == proxy.Sidecar:
		client = ClientSidecar
	}
	c := pc.classOf(client, p.Namespace)
	c.EDS.View = pc.viewOf(p)
	if client == ClientRouter {
		c.LDS.Gateways = pc.gateways.selected(p)
		c.LDS.Denied = c.LDS.Gateways != "" && pc.policies.denies(pc.settings, p)
		c.RDS.Gateways, c.RDS.Denied = c.LDS.Gateways, c.LDS.Denied
	}
	if client == ClientSidecar {
		c.LDS.Cluster, c.RDS.Cluster = c.EDS.View.Cluster, c.EDS.View.Cluster
	}
	c.LDS.Bind = client == ClientSidecar && p.Text("INTERCEPTION_MODE") == "NONE"
	c.RDS.LargeRegexes = pc.HasLargeRegexes() && client != ClientGRPC && p.RegexLimit() >= re2.Raised
	source := func(m *sourceMatch) bool { return m.matches(p) }
	c.LDS.Sources, c.RDS.Sources = pc.virtualServices.sourcesOf(ident.LDS, source), pc.virtualServices.sourcesOf(ident.RDS, source)
	raw := pc.raw.selected(p)
	c.CDS.Raw, c.EDS.Raw, c.LDS.Raw, c.RDS.Raw = raw[ident.CDS], raw[ident.EDS], raw[ident.LDS], raw[ident.RDS]
	c.selectRules(pc.rules.selected(p))
	if client != ClientGRPC && slices.Contains(pc.settings.trustDomains, p.Identity.TrustDomain) {
		c.SDS = c.secretsIn(client, p.Namespace)
	}
	return c.Released(pc.world.Releases(p.Client()))
}

// secretsIn returns the class of secrets of clients in a namespace that have shown an
// identity of the mesh. Most sidecars can have none, and share one class.
func (c *ProxyClass) secretsIn(client Client, namespace string) SDSClass {
	if c.LDS.Gateways == "" && c.CDS.Scope.Selected == "" {
		return SDSClass{}
	}
	scope := Scope{Rules: c.CDS.Scope.Rules, Selected: c.CDS.Scope.Selected}
	return SDSClass{Client: client, Scope: scope, Gateways: c.LDS.Gateways, Namespace: namespace}
}

// selectRules sets the workload selectors of DestinationRules that the proxy
// matches.
func (c *ProxyClass) selectRules(selected SelectorSet) {
	c.CDS.Scope.Selected, c.EDS.Scope.Selected, c.RDS.Scope.Selected = selected, selected, selected
}

// HasLargeRegexes reports whether a VirtualService has a regular expression that a
// stock Envoy refuses.
func (pc *PushContext) HasLargeRegexes() bool { return pc.virtualServices.large > 0 }

// Classes returns the classes that a version must be generated for before it is
// published: a router, a sidecar and a gRPC client for each namespace with a
// view of its own and for the common view; routers for each selector of
// Gateways, in the common view and in the views of the Gateways' namespaces; a
// sidecar that matches every source; sidecars and gRPC clients of each cluster
// and network; if there are expressions that stock Envoys refuse, all of these for
// Envoys that take them too. They have no raw resources, which are the same for every proxy
// that gets them.
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
	gateways := maps.Collect(pc.gateways.bySelector.All())
	for _, text := range slices.Sorted(maps.Keys(gateways)) {
		homes := []string{""}
		for _, g := range gateways[text] {
			homes = append(homes, g.Key.Namespace)
		}
		for _, ns := range homes {
			c := pc.classOf(ClientRouter, ns)
			c.LDS.Gateways, c.RDS.Gateways = SelectorSet(text), SelectorSet(text)
			c.SDS = c.secretsIn(ClientRouter, ns)
			add(c)
			if pc.policies.mayDeny(pc.settings) {
				c.LDS.Denied, c.RDS.Denied = true, true
				add(c)
			}
		}
	}
	every := pc.classOf(ClientSidecar, "")
	anyone := func(*sourceMatch) bool { return true }
	every.LDS.Sources, every.RDS.Sources = pc.virtualServices.sourcesOf(ident.LDS, anyone), pc.virtualServices.sourcesOf(ident.RDS, anyone)
	add(every)
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
	if pc.HasLargeRegexes() {
		for _, c := range slices.Clone(all) {
			c.RDS.LargeRegexes = c.RDS.Client != ClientGRPC
			add(c)
		}
	}
	return all
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
