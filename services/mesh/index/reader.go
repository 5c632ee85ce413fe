package index

import (
	"cmp"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
)

// Input names a part of a PushContext that changes as one. While no input of a
// result changes, neither does the result.
type Input struct {
	Kind InputKind
	// For InputRaw a selector, else names.
	A, B string
	// View is the id of the pin in whose view of the world it is; empty: the view of all
	// other proxies.
	View string
}

// InputKind is a kind of input.
type InputKind uint8

// Kinds of inputs.
const (
	// InputRaw to InputRaw+ResourceTypes-1: the raw resources of a type with the
	// selector A, and which of them win.
	InputRaw InputKind = iota
	// InputRawOne: the raw resource B ("type name") of the selector A.
	InputRawOne = InputKind(ident.ResourceTypes) + iota
	// InputServices: the services that scope A sees, without their endpoints.
	InputServices
	// InputService: service B of namespace A, without its endpoints.
	InputService
	// InputEndpoints: the endpoints of service B of namespace A.
	InputEndpoints
	// InputVirtualServices: the VirtualServices that scope A sees, and their
	// heads.
	InputVirtualServices
	// InputVirtualService: the content of the VirtualService A/B.
	InputVirtualService
	// InputRules: the DestinationRules that scope A finds for each host.
	InputRules
	// InputRule: the content of the merged rule of namespace A and host B.
	InputRule
	// InputGateways: the Gateways with the selector A.
	InputGateways
	// InputMesh: MeshConfig, and the settings for names of MeshPolicy.
	InputMesh
	// InputNetworks: the gateways of networks.
	InputNetworks
	// InputSpread: the services whose endpoints a proxy sees depending on its
	// place.
	InputSpread
	// InputWorkloads: the Pods and WorkloadEntries of namespace A with service
	// account B. Generation does not read them; Locate does.
	InputWorkloads
	// InputSecret, InputConfigMap, InputTrustBundle and InputJwks: the object A/B of that
	// kind.
	InputSecret
	InputConfigMap
	InputTrustBundle
	InputJwks
	// InputCredentialRules: which merged DestinationRules name credentials.
	InputCredentialRules
	// InputConnectionRules: which merged DestinationRules say something about connections.
	InputConnectionRules
	// InputPlaces: which merged DestinationRules, and whether the MeshConfig, make proxies
	// prefer endpoints.
	InputPlaces
	// InputPeers: the PeerAuthentications of namespace A.
	InputPeers
	// InputTargets: which services the workload with address B of namespace A serves;
	// B is empty: those found by labels. Generation does not read it; Classify does.
	InputTargets
	// InputPolicies: the policies of the selector A, with their content.
	InputPolicies
	// InputHost: the services of host A in all namespaces, without their endpoints.
	InputHost
	// InputIdentities: the service accounts behind service B of namespace A, and whether
	// one of its endpoints speaks mutual TLS.
	InputIdentities
	// InputMutualTLS: whether an endpoint of any service speaks mutual TLS, or a
	// DestinationRule demands it.
	InputMutualTLS
	// InputNamedDomains: the trust domains of the names that services and DestinationRules
	// expect in certificates.
	InputNamedDomains
	// InputView: whether there is a pin of the id A.
	InputView
	// InputGrants: the ReferenceGrants of namespace A.
	InputGrants
	// InputTelemetry: the Telemetries of namespace A.
	InputTelemetry
	// InputEnvoyFilter: the patches of the selection A at the place B, with the kind of client
	// and the type.
	InputEnvoyFilter
	// InputSidecar: the Sidecar A/B.
	InputSidecar
	// InputServicesOf: the services of namespace A, "*" of all, without their endpoints.
	InputServicesOf
	// InputVirtualServicesOf: the heads of the VirtualServices of sidecars of namespace A, "*"
	// of all.
	InputVirtualServicesOf
)

// Compare orders inputs.
func (in Input) Compare(o Input) int {
	return cmp.Or(cmp.Compare(in.Kind, o.Kind), cmp.Compare(in.A, o.A), cmp.Compare(in.B, o.B), cmp.Compare(in.View, o.View))
}

// RawInput is the input for the raw resources of type t of a selector.
func RawInput(t ident.ResourceType, selector string) Input {
	return Input{Kind: InputRaw + InputKind(t), A: selector}
}

// RawOneInput is the input for one of them, by name.
func RawOneInput(t ident.ResourceType, selector, name string) Input {
	return Input{Kind: InputRawOne, A: selector, B: t.String() + " " + name}
}

// Reader reads a PushContext and records its inputs. Results must not be
// changed. It is for one goroutine.
type Reader struct {
	pc     *PushContext
	inputs map[Input]struct{}
	last   Input // recorded last
	view   string

	applied map[PatchID]struct{} // of EnvoyFilters
}

// Read returns a Reader that has read nothing.
func (pc *PushContext) Read() *Reader {
	return &Reader{pc: pc, inputs: make(map[Input]struct{})}
}

// ReadFor returns a Reader for the classes that Pin or no pin is for, as
// ProxyClass.Pin returns it.
func (pc *PushContext) ReadFor(pin string) *Reader {
	if pin == "" {
		return pc.Read()
	}
	r := pc.In(pin).Read()
	r.view = pin
	r.note(Input{Kind: InputView, A: pin})
	return r
}

// Inputs returns what was read, sorted.
func (r *Reader) Inputs() []Input {
	return sortInputs(r.inputs)
}

func (r *Reader) note(in Input) {
	in.View = r.view
	if in == r.last {
		return // one input is often read many times in a row
	}
	r.inputs[in], r.last = struct{}{}, in
}

// Raw returns the raw resources of type t with the selector of that text,
// sorted by name, the winner of each name.
func (r *Reader) Raw(t ident.ResourceType, selector string) []*RawResource {
	r.note(RawInput(t, selector))
	return r.pc.raw.cells.Get(cellKey{t, selector})
}

// RawOne returns the one of that name, or nil. Its input changes less often than
// that of Raw.
func (r *Reader) RawOne(t ident.ResourceType, selector, name string) *RawResource {
	r.note(RawOneInput(t, selector, name))
	return r.pc.raw.one(t, selector, name)
}

// CompareRaw orders raw resources of one name, the winner first.
func (r *Reader) CompareRaw(a, b *RawResource) int { return r.pc.settings.compareRaw(a, b) }

// Services returns the services that a scope sees, sorted by host, one for each
// host (VIS-3): with a Sidecar those that it imports, and those that the VirtualServices need
// which it imports (SC-4).
func (r *Reader) Services(s Scope) []*Service {
	if s.Imports != "" {
		return r.imported(s.Imports).services
	}
	r.note(Input{Kind: InputServices, A: s.Services})
	return r.pc.services.list(s.Services)
}

// ServiceByHost returns the service of a host in a scope, or nil; for an alias
// the service that it names (SVC-4). With a Sidecar it is one of Services.
func (r *Reader) ServiceByHost(s Scope, host string) *Service {
	if s.Imports != "" {
		return r.importedService(s.Imports, host)
	}
	r.note(Input{Kind: InputServices, A: s.Services})
	return r.pc.services.find(s.Services, host)
}

// Service returns one service, or nil.
func (r *Reader) Service(id ServiceID) *Service {
	r.note(Input{Kind: InputService, A: id.Namespace, B: id.Hostname})
	return r.pc.services.byID.Get(id)
}

// Endpoints returns the endpoints of a service; nil: none.
func (r *Reader) Endpoints(id ServiceID) Endpoints {
	r.note(Input{Kind: InputEndpoints, A: id.Namespace, B: id.Hostname})
	return r.pc.endpoints.byID.Get(id)
}

// VirtualServices returns the VirtualServices that a scope sees and that are
// bound to a gateway ("mesh", or namespace/name), the oldest first, which wins
// (VS-5). With a Sidecar, Egress has those of sidecars, which it imports.
func (r *Reader) VirtualServices(s Scope, gateway string) []*VirtualServiceHead {
	r.note(Input{Kind: InputVirtualServices, A: s.VirtualServices})
	return r.pc.virtualServices.list(s.VirtualServices, gateway)
}

// VirtualService returns the content of a VirtualService, with hosts of
// destinations in full and delegates not yet merged; nil: it is gone.
func (r *Reader) VirtualService(k ident.Key) *networking.VirtualService {
	r.note(Input{Kind: InputVirtualService, A: k.Namespace, B: k.Name})
	return r.pc.virtualServices.spec(k)
}

// Rule returns the DestinationRules that count for a host in a scope (DR-1).
// With serviceNamespace "" there is no service and no rule counts.
func (r *Reader) Rule(s Scope, serviceNamespace, host string) (RuleID, bool) {
	r.note(Input{Kind: InputRules, A: s.Rules})
	return r.pc.rules.find(s, serviceNamespace, host)
}

// DestinationRule returns the content of merged rules (DR-2) and the objects
// that they come from; nil: they are gone.
func (r *Reader) DestinationRule(id RuleID) (*networking.DestinationRule, []ident.Key) {
	r.note(Input{Kind: InputRule, A: id.Namespace, B: id.Host})
	return r.pc.rules.rule(id)
}

// MaxConnectionDuration returns how long a client's connection to a server with TLS may
// last; 0: for ever (KEY-12).
func (r *Reader) MaxConnectionDuration() time.Duration {
	r.note(Input{Kind: InputMesh})
	return r.pc.settings.maxConnection
}

// CertificatesOnDemand reports whether routers ask for a certificate of a Gateway when a
// client first needs it, because the MeshPolicy says so (SDS-12).
func (r *Reader) CertificatesOnDemand() bool {
	r.note(Input{Kind: InputMesh})
	return r.pc.settings.onDemand
}

// Gateway is a Gateway of networking.istio.io.
type Gateway struct {
	Key     ident.Key
	Created time.Time // orders Gateways of several selectors
	Spec    *networking.Gateway
}

// Gateways returns the Gateways with the selector of that text, the oldest
// first (GW-2).
func (r *Reader) Gateways(selector string) []*Gateway {
	r.note(Input{Kind: InputGateways, A: selector})
	return r.pc.gateways.bySelector.Get(selector)
}

// Mesh returns MeshConfig with its defaults.
func (r *Reader) Mesh() *meshconfig.MeshConfig {
	r.note(Input{Kind: InputMesh})
	return r.pc.mesh
}

// TrustDomains returns the trust domains of the mesh: its own, then the aliases.
func (r *Reader) TrustDomains() []string {
	r.note(Input{Kind: InputMesh})
	return r.pc.settings.trustDomains
}

// DomainSuffix returns the suffix of Kubernetes hosts, such as cluster.local.
func (r *Reader) DomainSuffix() string {
	r.note(Input{Kind: InputMesh})
	return r.pc.settings.domainSuffix
}
