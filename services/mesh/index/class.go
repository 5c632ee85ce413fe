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
	CDS  CDSClass
	EDS  EDSClass
	LDS  LDSClass
	RDS  RDSClass
	SDS  SDSClass  `json:",omitzero"`
	ECDS ECDSClass `json:",omitzero"`
	NDS  NDSClass  `json:",omitzero"`
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
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	Scope  Scope // Services, Rules
	// Inbound are a sidecar's clusters for its own workload.
	Inbound InboundClusters `json:",omitempty"`
	// Ingress is the Sidecar that says something about the workload; Address the workload's,
	// set only if a cluster has it.
	Ingress string `json:",omitempty"`
	Address string `json:",omitempty"`
	// Certificates is where the client has its certificate of the mesh from. Set only if
	// there is mutual TLS of the mesh.
	Certificates proxy.Certificates `json:",omitzero"`
	// AutoPassthrough: a Gateway of the router forwards connections by the names of
	// clusters (GW-11).
	AutoPassthrough bool `json:",omitempty"`
	// Filters are the selections of EnvoyFilters with patches for this type that matched.
	Filters SelectorSet `json:",omitempty"`
	Raw     SelectorSet
	Release string // set only if something is quarantined for it; the same in the other types
}

// EDSClass holds what ClusterLoadAssignments depend on.
type EDSClass struct {
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	Scope  Scope // Services, Rules
	View   EndpointView
	// Mutual: the client has a certificate of the mesh. Set only if there is mutual TLS of
	// the mesh.
	Mutual bool `json:",omitempty"`
	// AutoPassthrough as in CDSClass.
	AutoPassthrough bool `json:",omitempty"`
	Raw             SelectorSet
	Release         string
}

// LDSClass holds what Listeners depend on.
type LDSClass struct {
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	// Scope has Services and VirtualServices; Rules only if the router passes connections
	// between networks, or if a DestinationRule says something about connections.
	Scope Scope
	// Cluster is the sidecar's Kubernetes cluster, if there are several, because
	// virtual IPs are each cluster's own (SVC-2).
	Cluster string
	// Bind: nothing redirects the sidecar's connections (INTERCEPTION_MODE NONE),
	// so its listeners bind ports of their own (LSN-12).
	Bind bool
	// Inbound are the ports of the own workload of a sidecar, or of a gRPC server. Address
	// is where they are called, set for servers and with Bind: the sidecar binds them there.
	Inbound Inbound `json:",omitempty"`
	Address string  `json:",omitempty"`
	// Transparent: connections keep the address of the caller (INTERCEPTION_MODE
	// TPROXY).
	Transparent bool `json:",omitempty"`
	// Certificates is where the proxy has its certificate of the mesh from: of a sidecar,
	// and of a router that has servers or clusters with mutual TLS of the mesh.
	Certificates proxy.Certificates `json:",omitzero"`
	// Sources are the conditions on callers in VirtualServices with TCP routes
	// that the proxy matches (VST-3).
	Sources SelectorSet
	// Gateways are the selectors of Gateways that match a router, Listens where it listens
	// for their ports.
	Gateways SelectorSet
	Listens  Listens `json:",omitempty"`
	// Policies are the selectors of AuthorizationPolicies that matched, which also hold
	// for connections without requests (POL-3): keys of Reader.Policies. Those of a gRPC
	// server are all that matched it.
	Policies SelectorSet `json:",omitempty"`
	// PrincipalNames as in ECDSClass, set only with Policies.
	PrincipalNames bool `json:",omitempty"`
	// Telemetry are the selectors of Telemetries of the proxy's namespace that matched, with
	// the namespace: the argument of Reader.Telemetry.
	Telemetry SelectorSet `json:",omitempty"`
	// ServiceName is the proxy's node.cluster, which names its service in traces. Set only if
	// it has a tracer that wants the name.
	ServiceName string `json:",omitempty"`
	// Filters as in CDSClass.
	Filters SelectorSet `json:",omitempty"`
	// Ingress as in CDSClass.
	Ingress string `json:",omitempty"`
	// Outbound is the Sidecar that says where calls to unknown hosts go; empty: the
	// MeshConfig does.
	Outbound string `json:",omitempty"`
	Raw      SelectorSet
	Release  string
}

// RDSClass holds what RouteConfigurations depend on.
type RDSClass struct {
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	Scope  Scope // all
	// Cluster as in LDSClass.
	Cluster string
	// Namespace in which a sidecar calls services by bare names; empty if there
	// are none.
	Namespace string
	// Sources are the conditions on callers in VirtualServices that the proxy
	// matches (VSM-10).
	Sources SelectorSet
	// Gateways and Listens as in LDSClass.
	Gateways SelectorSet
	Listens  Listens `json:",omitempty"`
	// LargeRegexes: the Envoy takes regular expressions that a stock one refuses.
	// Set only if there are some.
	LargeRegexes bool
	// Filters as in CDSClass.
	Filters SelectorSet `json:",omitempty"`
	// Outbound as in LDSClass.
	Outbound string `json:",omitempty"`
	Raw      SelectorSet
	Release  string
}

// SDSClass holds what Secrets depend on. Its zero value is the class of proxies that have
// not shown an identity of the mesh, and that no Gateway selects.
type SDSClass struct {
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	// Roots: the client has shown an identity of the mesh, so it may have its roots, which
	// agents ask for. Most sidecars may have nothing else.
	Roots bool  `json:",omitempty"`
	Scope Scope // Rules
	// Gateways and Listens as in LDSClass. They, and the DestinationRules in Scope, name
	// the secrets that the proxy may have (SDS-4). Which ReferenceGrants permit one of
	// another namespace is no part of the class.
	Gateways SelectorSet
	Listens  Listens `json:",omitempty"`
	// Namespace is empty if the proxy has shown no identity of the mesh. Then it is only
	// told which files on its machine its Gateways name.
	Namespace string
	// Certificates are the files that a proxy names as its certificate of the mesh.
	Certificates proxy.Certificates `json:",omitzero"`
	// Ingress is the Sidecar that has the proxy end TLS with files.
	Ingress string `json:",omitempty"`
	Release string
}

// ECDSClass holds what the filters of policies depend on. Its zero value is the class of
// proxies that no policy selects, and of gRPC clients.
type ECDSClass struct {
	Pin       string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client    Client
	Namespace string
	// Selected are the selectors of AuthorizationPolicies and RequestAuthentications that
	// matched, with their namespaces: keys of Reader.Policies.
	Selected SelectorSet
	// Services is the scope in which the proxy finds the authorizers of CUSTOM policies;
	// empty without such a policy too.
	Services string `json:",omitempty"`
	// Fetches: the proxy fetches keys of token issuers, from clusters of this scope
	// (POL-13).
	Fetches bool `json:",omitempty"`
	// Scope has Services, Rules and Imports; without Fetches Imports only, if an authorizer
	// is asked.
	Scope Scope `json:",omitzero"`
	// PrincipalNames: the proxy does not have the matcher of verified certificates
	// (proxy.MTLSAuthenticated), so rules use the one for names of principals (POL-4).
	PrincipalNames bool `json:",omitempty"`
	// Filters as in CDSClass.
	Filters SelectorSet `json:",omitempty"`
	Release string
}

// NDSClass holds what the names that an agent answers by DNS depend on (NDS-1). Its zero
// value is the class of all other clients: nothing is made for them.
type NDSClass struct {
	Pin    string `json:",omitempty"` // the pin, or the rollout, in whose view the class is
	Client Client
	Names  bool  // the client is an agent that answers names
	Scope  Scope // Services
	// View as in EDSClass. Its Cluster also tells which virtual IPs the agent sees.
	View EndpointView
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
	case ident.ECDS:
		only.ECDS = c.ECDS
	case ident.NDS:
		only.NDS = c.NDS
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
	return [ident.ResourceTypes]string{ident.CDS: c.CDS.Release, ident.EDS: c.EDS.Release, ident.LDS: c.LDS.Release, ident.RDS: c.RDS.Release, ident.SDS: c.SDS.Release, ident.ECDS: c.ECDS.Release}[t]
}

// Pin returns the id of the pin, or of the rollout, in whose view of the world resources of
// type t are made for the class; empty: in that of all other proxies.
func (c ProxyClass) Pin(t ident.ResourceType) string {
	return [ident.ResourceTypes]string{
		ident.CDS: c.CDS.Pin, ident.EDS: c.EDS.Pin, ident.LDS: c.LDS.Pin, ident.RDS: c.RDS.Pin,
		ident.SDS: c.SDS.Pin, ident.ECDS: c.ECDS.Pin, ident.NDS: c.NDS.Pin,
	}[t]
}

// InView returns c as the class of proxies of a pin, or of those that a rollout has not
// reached. Zero classes stay: nothing is made for them.
func (c ProxyClass) InView(pin string) ProxyClass {
	c.CDS.Pin, c.EDS.Pin, c.LDS.Pin, c.RDS.Pin = pin, pin, pin, pin
	if c.SDS != (SDSClass{}) {
		c.SDS.Pin = pin
	}
	if c.ECDS != (ECDSClass{}) {
		c.ECDS.Pin = pin
	}
	if c.NDS != (NDSClass{}) {
		c.NDS.Pin = pin
	}
	return c
}

// Released returns c as the class of clients of that name and version, set for
// each type in which something is quarantined. Generation makes the same for
// all releases.
func (c ProxyClass) Released(release [ident.ResourceTypes]string) ProxyClass {
	c.CDS.Release, c.EDS.Release, c.LDS.Release, c.RDS.Release = release[ident.CDS], release[ident.EDS], release[ident.LDS], release[ident.RDS]
	c.SDS.Release, c.ECDS.Release = release[ident.SDS], release[ident.ECDS]
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
	if c.CDS.Scope.Imports != "" {
		words = append(words, "with Sidecar "+c.CDS.Scope.Imports)
	}
	for _, where := range []string{cmp.Or(c.EDS.View.Cluster, c.LDS.Cluster, c.RDS.Cluster), c.EDS.View.Network} {
		if where != "" {
			words = append(words, "in "+where)
		}
	}
	if at := c.EDS.View.Place; at != (Place{}) {
		words = append(words, at.words()...)
	}
	if c.RDS.LargeRegexes {
		words = append(words, "with large regexes")
	}
	if c.EDS.Mutual {
		words = append(words, "with certificates")
	}
	if c.CDS.AutoPassthrough || c.EDS.AutoPassthrough {
		words = append(words, "between networks")
	}
	if c.LDS.ServiceName != "" {
		words = append(words, "traced as "+c.LDS.ServiceName)
	}
	parts := []string{strings.Join(words, " ")}
	if c.CDS.Pin != "" {
		parts = append(parts, c.CDS.Pin)
	}
	add := func(set SelectorSet) {
		for _, s := range set.Selectors() {
			if !slices.Contains(parts, s) {
				parts = append(parts, s)
			}
		}
	}
	add(c.LDS.Gateways)
	parts = append(parts, c.LDS.Listens.words()...)
	add(c.CDS.Scope.Selected)
	add(c.LDS.Sources)
	add(c.RDS.Sources)
	add(c.ECDS.Selected)
	add(c.LDS.Telemetry)
	for t := range ident.ResourceTypes {
		add(c.Filters(t))
	}
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
