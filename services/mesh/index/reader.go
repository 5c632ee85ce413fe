package index

import (
	"cmp"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
)

// Input names a part of a PushContext that generation may read and that
// changes as one: while all inputs of a result are as they were, so is the
// result.
type Input struct {
	Kind InputKind
	// What of that kind: for InputRaw a selector, else names.
	A, B string
}

// InputKind is a kind of inputs.
type InputKind uint8

// The kinds of inputs.
const (
	// InputRaw to InputRaw+ResourceTypes-1: which raw resources of a type have
	// the selector A, and who of them wins.
	InputRaw InputKind = iota
	// InputRawOne: the raw resource B ("type name") of the selector A.
	InputRawOne = InputKind(ident.ResourceTypes) + iota
	// InputServices: the services that scope A sees, with all that they say
	// but their endpoints.
	InputServices
	// InputService: service B of namespace A, without its endpoints.
	InputService
	// InputEndpoints: the endpoints of service B of namespace A.
	InputEndpoints
	// InputVirtualServices: which VirtualServices scope A sees, and their heads.
	InputVirtualServices
	// InputVirtualService: what the VirtualService A/B says.
	InputVirtualService
	// InputRules: which DestinationRules scope A finds for which hosts.
	InputRules
	// InputRule: what the merged rule of namespace A and host B says.
	InputRule
	// InputGateways: the Gateways that have the selector A.
	InputGateways
	// InputMesh: MeshConfig, and what MeshPolicy says about names.
	InputMesh
	// InputNetworks: the gateways of networks.
	InputNetworks
	// InputSpread: of which services proxies see other endpoints by where they
	// are.
	InputSpread
)

// Compare orders inputs the same way everywhere.
func (in Input) Compare(o Input) int {
	return cmp.Or(cmp.Compare(in.Kind, o.Kind), cmp.Compare(in.A, o.A), cmp.Compare(in.B, o.B))
}

// RawInput is the raw resources of type t of a selector.
func RawInput(t ident.ResourceType, selector string) Input {
	return Input{Kind: InputRaw + InputKind(t), A: selector}
}

// RawOneInput is the raw resource of type t, a selector and that name.
func RawOneInput(t ident.ResourceType, selector, name string) Input {
	return Input{Kind: InputRawOne, A: selector, B: t.String() + " " + name}
}

// Reader reads a PushContext and notes what was read. Nothing that it returns
// may be changed. It is for one goroutine.
type Reader struct {
	pc     *PushContext
	inputs map[Input]struct{}
	last   Input // that was noted
}

// Read returns a Reader that has read nothing.
func (pc *PushContext) Read() *Reader {
	return &Reader{pc: pc, inputs: make(map[Input]struct{})}
}

// Inputs is what was read, sorted.
func (r *Reader) Inputs() []Input {
	return sortInputs(r.inputs)
}

func (r *Reader) note(in Input) {
	if in == r.last {
		return // one thing is often read many times in a row
	}
	r.inputs[in], r.last = struct{}{}, in
}

// Raw returns the raw resources of type t that have the selector of that text,
// sorted by name, the winning one of each name.
func (r *Reader) Raw(t ident.ResourceType, selector string) []*RawResource {
	r.note(RawInput(t, selector))
	return r.pc.raw.list(t, selector)
}

// RawOne returns what Raw does of one name, or nil: it changes less often.
func (r *Reader) RawOne(t ident.ResourceType, selector, name string) *RawResource {
	r.note(RawOneInput(t, selector, name))
	return r.pc.raw.one(t, selector, name)
}

// Before says which of two raw resources wins a name that both have.
func (r *Reader) Before(a, b *RawResource) bool { return r.pc.settings.compareRaw(a, b) < 0 }

// Services returns what a scope sees, sorted by host name: one service a host
// (VIS-3: the own namespace, then Kubernetes, then the oldest).
func (r *Reader) Services(s Scope) []*Service {
	r.note(Input{Kind: InputServices, A: s.Services})
	return r.pc.services.list(s.Services)
}

// ServiceByHost returns the service of a host that a scope sees, for an alias
// the one that it stands for (SVC-4), or nil.
func (r *Reader) ServiceByHost(s Scope, host string) *Service {
	r.note(Input{Kind: InputServices, A: s.Services})
	return r.pc.services.find(s.Services, host)
}

// Service returns one service, or nil.
func (r *Reader) Service(id ServiceID) *Service {
	r.note(Input{Kind: InputService, A: id.Namespace, B: id.Hostname})
	return r.pc.services.byID.Get(id)
}

// Endpoints returns those of a service; nil: none.
func (r *Reader) Endpoints(id ServiceID) Endpoints {
	r.note(Input{Kind: InputEndpoints, A: id.Namespace, B: id.Hostname})
	return r.pc.endpoints.byID.Get(id)
}

// VirtualServices returns what a scope sees of those bound to a gateway
// ("mesh", or namespace/name), the one that wins first (VS-5: the oldest).
func (r *Reader) VirtualServices(s Scope, gateway string) []*VirtualServiceHead {
	r.note(Input{Kind: InputVirtualServices, A: s.VirtualServices})
	return r.pc.virtualServices.list(s.VirtualServices, gateway)
}

// VirtualService returns what a VirtualService says, hosts of destinations in
// full, delegates not yet merged; nil: it is gone.
func (r *Reader) VirtualService(k ident.Key) *networking.VirtualService {
	r.note(Input{Kind: InputVirtualService, A: k.Namespace, B: k.Name})
	return r.pc.virtualServices.spec(k)
}

// Rule returns which DestinationRules count for a host in a scope (DR-1):
// serviceNamespace is that of the service; with "", there being none, no rule
// counts.
func (r *Reader) Rule(s Scope, serviceNamespace, host string) (RuleID, bool) {
	r.note(Input{Kind: InputRules, A: s.Rules})
	return r.pc.rules.find(s.Rules, serviceNamespace, host)
}

// DestinationRule returns what merged rules say (DR-2), and the objects that
// they come from; nil: they are gone.
func (r *Reader) DestinationRule(id RuleID) (*networking.DestinationRule, []ident.Key) {
	r.note(Input{Kind: InputRule, A: id.Namespace, B: id.Host})
	return r.pc.rules.rule(id)
}

// Gateway is a Gateway of networking.istio.io.
type Gateway struct {
	Key     ident.Key
	Created time.Time // those of several selectors are put in order by it
	Spec    *networking.Gateway
}

// Gateways returns the Gateways that have the selector of that text, the oldest
// first (GW-2).
func (r *Reader) Gateways(selector string) []Gateway {
	r.note(Input{Kind: InputGateways, A: selector})
	return r.pc.gateways.list(selector)
}

// Mesh returns MeshConfig with its defaults.
func (r *Reader) Mesh() *meshconfig.MeshConfig {
	r.note(Input{Kind: InputMesh})
	return r.pc.mesh
}

// DomainSuffix is that of Kubernetes services: cluster.local.
func (r *Reader) DomainSuffix() string {
	r.note(Input{Kind: InputMesh})
	return r.pc.settings.domainSuffix
}
