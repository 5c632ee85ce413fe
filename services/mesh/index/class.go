package index

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
)

// SelectorSet is which node selectors matched a proxy: their texts, sorted, a
// line each. Labels and other words of a proxy never enter a class, only
// which selectors they match.
type SelectorSet string

// Selectors are the texts in the set.
func (s SelectorSet) Selectors() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), "\n")
}

// ProxyClass is all that generation may know of a proxy, by type. Proxies of
// equal class get the same bytes.
type ProxyClass struct {
	CDS CDSClass
	EDS EDSClass
	LDS LDSClass
	RDS RDSClass
}

// Client is what kind of client a proxy is, as far as it matters to what it is
// served.
type Client uint8

// The kinds of clients.
const (
	ClientRouter Client = iota
	ClientSidecar
	ClientGRPC
)

// CDSClass is what Clusters depend on.
type CDSClass struct {
	Client  Client
	Scope   Scope // Services, Rules
	Raw     SelectorSet
	Release string // where something is in quarantine for it, as in the other types
}

// EDSClass is what ClusterLoadAssignments depend on.
type EDSClass struct {
	Client  Client
	Scope   Scope // Services, Rules
	View    EndpointView
	Raw     SelectorSet
	Release string
}

// LDSClass is what Listeners depend on.
type LDSClass struct {
	Client Client
	Scope  Scope // Services, VirtualServices
	// Cluster is in which Kubernetes cluster of several sidecars call services
	// by their virtual IPs (SVC-2).
	Cluster string
	// Bind says that nothing redirects a sidecar's connections, so that its
	// listeners have ports of their own (LSN-12: INTERCEPTION_MODE NONE).
	Bind bool
	// Sources is which sourceLabels and sourceNamespaces of VirtualServices
	// with routes for connections match (VST-3).
	Sources SelectorSet
	// Gateways is which selectors of Gateways match a router.
	Gateways SelectorSet
	Raw      SelectorSet
	Release  string
}

// RDSClass is what RouteConfigurations depend on.
type RDSClass struct {
	Client Client
	Scope  Scope // all
	// Cluster is as in LDSClass.
	Cluster string
	// Namespace is in which sidecars call services by their bare names; empty
	// where there are none.
	Namespace string
	// Sources is which sourceLabels and sourceNamespaces of VirtualServices
	// match (VSM-10).
	Sources  SelectorSet
	Gateways SelectorSet
	Raw      SelectorSet
	Release  string
}

// Only is c with what concerns other types than t left out: the class of t.
func (c ProxyClass) Only(t ident.ResourceType) ProxyClass {
	switch t {
	case ident.CDS:
		return ProxyClass{CDS: c.CDS}
	case ident.EDS:
		return ProxyClass{EDS: c.EDS}
	case ident.LDS:
		return ProxyClass{LDS: c.LDS}
	case ident.RDS:
		return ProxyClass{RDS: c.RDS}
	}
	return ProxyClass{}
}

// Raw is the selectors of raw resources of type t that matched.
func (c ProxyClass) Raw(t ident.ResourceType) SelectorSet {
	return [ident.ResourceTypes]SelectorSet{ident.CDS: c.CDS.Raw, ident.EDS: c.EDS.Raw, ident.LDS: c.LDS.Raw, ident.RDS: c.RDS.Raw}[t]
}

// Release is the client's name and version where something of type t is in
// quarantine for it; else empty.
func (c ProxyClass) Release(t ident.ResourceType) string {
	return [ident.ResourceTypes]string{ident.CDS: c.CDS.Release, ident.EDS: c.EDS.Release, ident.LDS: c.LDS.Release, ident.RDS: c.RDS.Release}[t]
}

// Released is c as the class of clients of that name and version: per type,
// one of which something is in quarantine. Generate makes the same for all.
func (c ProxyClass) Released(release [ident.ResourceTypes]string) ProxyClass {
	c.CDS.Release, c.EDS.Release, c.LDS.Release, c.RDS.Release = release[ident.CDS], release[ident.EDS], release[ident.LDS], release[ident.RDS]
	return c
}

// Encode is c as bytes, equal for equal classes; DecodeClass reads them.
func (c ProxyClass) Encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("a class of texts cannot fail to marshal: %v", err))
	}
	return b
}

// DecodeClass reads what Encode returned, in a build with the same classes;
// everything else is an error.
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

// String is for people: what kind of client, what namespace's view of the mesh
// it has where that is not everybody's, in which cluster and network where that
// makes a difference, and the selectors that matched.
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
	parts := []string{strings.Join(words, " ")}
	add := func(set SelectorSet) {
		for _, s := range set.Selectors() {
			if !slices.Contains(parts, s) {
				parts = append(parts, s)
			}
		}
	}
	add(c.LDS.Gateways)
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

// String is router, sidecar or gRPC.
func (c Client) String() string {
	switch c {
	case ClientSidecar:
		return "sidecar"
	case ClientGRPC:
		return "gRPC"
	}
	return "router"
}

// classOf is the class of a kind of client in a namespace, as far as the world
// and not the proxy decides it.
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

// Classify says which class p is of. It costs one match a distinct selector.
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
		c.RDS.Gateways = c.LDS.Gateways
	}
	if client == ClientSidecar {
		c.LDS.Cluster, c.RDS.Cluster = c.EDS.View.Cluster, c.EDS.View.Cluster
	}
	c.LDS.Bind = client == ClientSidecar && p.Text("INTERCEPTION_MODE") == "NONE"
	source := func(m *sourceMatch) bool { return m.matches(p) }
	c.LDS.Sources, c.RDS.Sources = pc.virtualServices.sourcesOf(ident.LDS, source), pc.virtualServices.sourcesOf(ident.RDS, source)
	raw := pc.raw.selected(p)
	c.CDS.Raw, c.EDS.Raw, c.LDS.Raw, c.RDS.Raw = raw[ident.CDS], raw[ident.EDS], raw[ident.LDS], raw[ident.RDS]
	return c.Released(pc.world.Releases(p.Client()))
}

// Classes are those for which a world must be fit to be served: of each
// namespace that sees something of its own, and of everybody, a router, a
// sidecar and a gRPC client; routers for each selector of Gateways, as
// everybody and as the Gateways' own namespaces see the mesh; a sidecar that is
// every source that VirtualServices ask for; and sidecars and gRPC clients of
// each cluster and network. They have no raw resources, which are what they are
// whoever gets them.
func (pc *PushContext) Classes() []ProxyClass {
	namespaces := []string{""}
	for _, c := range []table.Counter{pc.services.scopes, pc.services.homes, pc.virtualServices.scopes, pc.rules.scopes} {
		namespaces = append(namespaces, c.Names()...)
	}
	slices.Sort(namespaces)
	var all []ProxyClass
	seen := make(map[ProxyClass]bool)
	add := func(c ProxyClass) {
		if !seen[c] {
			seen[c] = true
			all = append(all, c)
		}
	}
	for _, ns := range slices.Compact(namespaces) {
		for _, client := range []Client{ClientRouter, ClientSidecar, ClientGRPC} {
			add(pc.classOf(client, ns))
		}
	}
	for _, s := range pc.gateways.selectors {
		homes := []string{""}
		for _, g := range pc.gateways.bySelector.Get(s.text) {
			homes = append(homes, g.Key.Namespace)
		}
		for _, ns := range homes {
			c := pc.classOf(ClientRouter, ns)
			c.LDS.Gateways, c.RDS.Gateways = SelectorSet(s.text), SelectorSet(s.text)
			add(c)
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
	return all
}

// selectorSet collects the texts of selectors, which come sorted.
type selectorSet struct{ strings.Builder }

func (s *selectorSet) add(text string) {
	if s.Len() > 0 {
		s.WriteByte('\n')
	}
	s.WriteString(text)
}

func (s *selectorSet) set() SelectorSet { return SelectorSet(s.String()) }

// selected is by type the selectors of raw resources that match p.
func (x *rawIndex) selected(p *proxy.Proxy) [ident.ResourceTypes]SelectorSet {
	var sets [ident.ResourceTypes]selectorSet
	for _, s := range x.selectors {
		if !s.Matches(p) {
			continue
		}
		for t := range ident.ResourceTypes {
			if _, used := x.cells[cellKey{t, s.text}]; used {
				sets[t].add(s.text)
			}
		}
	}
	var all [ident.ResourceTypes]SelectorSet
	for t := range sets {
		all[t] = sets[t].set()
	}
	return all
}

// selected is the selectors of Gateways that match a router.
func (x *gatewayIndex) selected(p *proxy.Proxy) SelectorSet {
	var set selectorSet
	for _, s := range x.selectors {
		if matchLabels(s.labels, p.Labels) {
			set.add(s.text)
		}
	}
	return set.set()
}

// sourcesOf is the sources that a proxy is, among those that decide about
// resources of type t.
func (x *virtualServiceIndex) sourcesOf(t ident.ResourceType, is func(*sourceMatch) bool) SelectorSet {
	var set selectorSet
	for _, m := range x.matches {
		if x.sources[t].Get(m.text) > 0 && is(m) {
			set.add(m.text)
		}
	}
	return set.set()
}
