package index

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// PushContext is the world indexed for generation. It is immutable; a successor
// shares everything unchanged with it.
type PushContext struct {
	world    *world.World
	mesh     *meshconfig.MeshConfig
	settings *settings
	// classes is another pointer if a proxy may be in another class.
	classes *byte

	raw             rawIndex
	services        serviceIndex
	endpoints       endpointIndex
	virtualServices virtualServiceIndex
	rules           ruleIndex
	gateways        gatewayIndex
	networks        networkIndex
	problems        table.Table[about, []problem.Diagnostic]
}

// indexedKinds are the kinds that a PushContext reads.
var indexedKinds = []string{
	resourceKind, world.ServiceKind, serviceEntryKind, world.EndpointsKind, workloadEntryKind, world.WorkloadKind,
	virtualServiceKind, destinationRuleKind, gatewayKind, world.NodeKind, world.NamespaceKind, meshNetworksKind,
}

// NewPushContext indexes the whole world.
func NewPushContext(w *world.World) *PushContext {
	var keys []ident.Key
	for _, kind := range indexedKinds {
		for o := range w.Objects(kind) {
			keys = append(keys, o.Key)
		}
	}
	s := settingsOf(w)
	empty := &PushContext{
		world: world.NewWorld(), mesh: w.MeshConfig(), settings: s, classes: new(byte),
		raw: newRawIndex(), services: newServiceIndex(), endpoints: newEndpointIndex(),
		virtualServices: newVirtualServiceIndex(), rules: newRuleIndex(s.rootNamespace), gateways: newGatewayIndex(),
		networks: newNetworkIndex(),
		problems: table.New[about, []problem.Diagnostic](hashAbout),
	}
	pc, _ := empty.next(w, keys)
	return pc
}

func settingsOf(w *world.World) *settings {
	p, m := w.Policy(), w.MeshConfig()
	return &settings{
		priority: p.SourcePriority, domainSuffix: p.DomainSuffix, rootNamespace: m.GetRootNamespace(),
		serviceExport: m.GetDefaultServiceExportTo(), virtualExport: m.GetDefaultVirtualServiceExportTo(),
		ruleExport: m.GetDefaultDestinationRuleExportTo(), clusterLocal: clusterLocalOf(m, p.DomainSuffix),
	}
}

func (s *settings) equal(o *settings) bool {
	return slices.Equal(s.priority, o.priority) && s.domainSuffix == o.domainSuffix && s.rootNamespace == o.rootNamespace &&
		slices.Equal(s.serviceExport, o.serviceExport) && slices.Equal(s.virtualExport, o.virtualExport) &&
		slices.Equal(s.ruleExport, o.ruleExport) && slices.Equal(s.clusterLocal, o.clusterLocal)
}

// Next returns the PushContext of w, which came from pc's world by a change of
// these keys, and the inputs that differ, sorted. Its cost grows with the
// change, not with the world. If settings changed how objects are read, it
// costs the world and names every input.
func (pc *PushContext) Next(w *world.World, changed []ident.Key) (*PushContext, []Input) {
	if !pc.settings.equal(settingsOf(w)) {
		next := NewPushContext(w)
		inputs := make(map[Input]struct{})
		pc.every(inputs)
		next.every(inputs)
		return next, sortInputs(inputs)
	}
	return pc.next(w, changed)
}

func (pc *PushContext) next(w *world.World, changed []ident.Key) (*PushContext, []Input) {
	t := &transition{settings: pc.settings, inputs: make(map[Input]struct{}), problems: pc.problems.Edit()}
	raw, services, endpoints := pc.raw.edit(t), pc.services.edit(t), pc.endpoints.edit(t)
	virtualServices, rules, gateways := pc.virtualServices.edit(t), pc.rules.edit(t), pc.gateways.edit(t)
	networks := pc.networks.edit(t)
	for _, k := range changed {
		was, is := pc.world.Served(k), w.Served(k)
		switch k.Kind {
		case resourceKind:
			raw.change(k, is)
		case world.ServiceKind, serviceEntryKind:
			services.change(was, is)
			endpoints.service(was, is)
			networks.service(was, is)
		case world.EndpointsKind:
			endpoints.slice(w, was, is)
		case workloadEntryKind, world.WorkloadKind:
			endpoints.workload(was, is)
		case virtualServiceKind:
			virtualServices.change(world.Name{Namespace: k.Namespace, Name: k.Name}, w.Winner(k))
		case destinationRuleKind:
			rules.change(was, is)
		case gatewayKind:
			gateways.change(was, is)
		case world.NamespaceKind:
			networks.namespace(was, is)
		case world.NodeKind:
			networks.node(was, is)
		}
	}
	next := &PushContext{world: w, mesh: w.MeshConfig(), settings: pc.settings, classes: pc.classes}
	if next.mesh != pc.mesh && !proto.Equal(next.mesh, pc.mesh) {
		t.changed(Input{Kind: InputMesh})
	}
	next.raw = raw.done()
	next.services = services.done()
	var moved func(ident.Shard) bool
	next.networks, moved = networks.done(w)
	next.endpoints = endpoints.done(&next.services, &next.networks, moved)
	next.virtualServices = virtualServices.done()
	next.rules = rules.done(&next.services, services.hosts)
	next.gateways = gateways.done()
	next.problems = t.problems.Table
	if t.other || !pc.world.SameQuarantinedClients(w) {
		next.classes = new(byte)
	}
	return next, sortInputs(t.inputs)
}

// every returns all inputs.
func (pc *PushContext) every(inputs map[Input]struct{}) {
	note := func(kind InputKind, a, b string) { inputs[Input{kind, a, b}] = struct{}{} }
	note(InputMesh, "", "")
	note(InputNetworks, "", "")
	note(InputSpread, "", "")
	for k, c := range pc.raw.cells {
		inputs[RawInput(k.Type, k.Selector)] = struct{}{}
		for _, r := range c.resources {
			inputs[RawOneInput(k.Type, k.Selector, r.Name)] = struct{}{}
		}
	}
	for id := range pc.services.byID.All() {
		note(InputService, id.Namespace, id.Hostname)
	}
	for id := range pc.endpoints.byID.All() {
		note(InputEndpoints, id.Namespace, id.Hostname)
	}
	for n := range pc.virtualServices.byName.All() {
		note(InputVirtualService, n.Namespace, n.Name)
	}
	for at := range pc.rules.merged.All() {
		note(InputRule, at.namespace, at.host)
	}
	for text := range pc.gateways.bySelector.All() {
		note(InputGateways, text, "")
	}
	for kind, scopes := range map[InputKind]table.Counter{
		InputServices: pc.services.scopes, InputVirtualServices: pc.virtualServices.scopes, InputRules: pc.rules.scopes,
	} {
		note(kind, "", "")
		for ns := range scopes.All() {
			note(kind, ns, "")
		}
	}
}

func sortInputs(inputs map[Input]struct{}) []Input {
	return slices.SortedFunc(maps.Keys(inputs), Input.Compare)
}

// SameClasses reports whether every proxy has the same class in o as in pc.
func (pc *PushContext) SameClasses(o *PushContext) bool { return pc.classes == o.classes }

// Size returns the numbers of services and VirtualServices.
func (pc *PushContext) Size() (services, virtualServices int) {
	return pc.services.byID.Len(), pc.virtualServices.byName.Len()
}

// AllServices returns the services that some namespace sees, sorted by host and
// namespace.
func (pc *PushContext) AllServices() []*Service {
	all := make([]*Service, 0, pc.services.byID.Len())
	for _, s := range pc.services.byID.All() {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Service) int {
		return cmp.Or(strings.Compare(a.Hostname, b.Hostname), strings.Compare(a.Namespace, b.Namespace))
	})
	return all
}

// Diagnostics returns the problems of objects that do not take effect as
// written; sorted.
func (pc *PushContext) Diagnostics() []problem.Diagnostic {
	var all []problem.Diagnostic
	for _, ds := range pc.problems.All() {
		all = append(all, ds...)
	}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return slices.Compact(all)
}

// Replacements returns the content that clients of a release are served instead
// of quarantined resources of type t; see ProxyClass.Release. The result must
// not be changed.
func (pc *PushContext) Replacements(t ident.ResourceType, release string) []world.Replacement {
	return pc.world.Replacements(t, release)
}
