package index

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

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
	others   map[string]string // the roots of other trust domains, in PEM
	// classes is another pointer if a proxy may be in another class.
	classes *byte
	views   []*view
	pin     string // the view's, if this is the PushContext of one

	raw             rawIndex
	services        serviceIndex
	endpoints       endpointIndex
	virtualServices virtualServiceIndex
	rules           ruleIndex
	gateways        gatewayIndex
	policies        policyIndex
	peers           peerIndex
	telemetry       telemetryIndex
	filters         filterIndex
	sidecars        sidecarIndex
	grants          grantIndex
	networks        networkIndex
	problems        table.Table[about, []problem.Diagnostic]

	imported sync.Map // *imported by Scope.Imports, found when first needed
}

// indexedKinds are the kinds that a PushContext reads.
var indexedKinds = []string{
	resourceKind, world.ServiceKind, serviceEntryKind, world.EndpointsKind, workloadEntryKind, world.WorkloadKind,
	virtualServiceKind, destinationRuleKind, gatewayKind, authorizationKind, requestsKind, peersKind, world.NodeKind, world.NamespaceKind, meshNetworksKind,
	secretKind, configMapKind, trustBundleKind, jwksKind, grantKind, telemetryKind, envoyFilterKind, sidecarKind,
}

// NewPushContext indexes the whole world.
func NewPushContext(w *world.World) *PushContext {
	pc, _ := indexAll(w)
	pc.views = pc.newViews(nil, nil, nil)
	return pc
}

// indexAll indexes the whole world and returns the inputs that it has.
func indexAll(w *world.World) (*PushContext, map[Input]struct{}) {
	s := settingsOf(w)
	empty := &PushContext{
		world: world.NewWorld(), mesh: w.MeshConfig(), settings: s, classes: new(byte), rules: ruleIndex{root: s.rootNamespace},
		others: otherRoots(w.MeshConfig()),
	}
	return empty.next(w, indexedKeys(w))
}

// indexedKeys returns the keys of the objects that a PushContext reads.
func indexedKeys(w *world.World) []ident.Key {
	var keys []ident.Key
	for _, kind := range indexedKinds {
		for o := range w.Objects(kind) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// defaultTrustDomain is that of a mesh whose MeshConfig names none.
const defaultTrustDomain = "cluster.local"

func settingsOf(w *world.World) *settings {
	p, m := w.Policy(), w.MeshConfig()
	raw := p.RawResources
	if len(raw) == 0 {
		raw = []string{m.GetRootNamespace()}
	}
	return &settings{
		priority: p.SourcePriority, domainSuffix: p.DomainSuffix, rootNamespace: m.GetRootNamespace(),
		serviceExport: m.GetDefaultServiceExportTo(), virtualExport: m.GetDefaultVirtualServiceExportTo(),
		ruleExport: m.GetDefaultDestinationRuleExportTo(), clusterLocal: clusterLocalOf(m, p.DomainSuffix),
		rawResources: raw, maxConnection: p.MaxConnectionDuration, onDemand: p.CertificatesOnDemand, merges: p.MergeHosts,
		trustDomains: append([]string{cmp.Or(m.GetTrustDomain(), defaultTrustDomain)}, m.GetTrustDomainAliases()...),
	}
}

// Next returns the PushContext of w, which came from pc's world by a change of
// these keys, and the inputs that differ, sorted. Its cost grows with the
// change, not with the world. If settings changed how objects are read, it
// costs both worlds and names every input of either.
func (pc *PushContext) Next(w *world.World, changed []ident.Key) (*PushContext, []Input) {
	if reflect.DeepEqual(pc.settings, settingsOf(w)) {
		next, inputs := pc.next(w, changed)
		next.views = next.newViews(pc, changed, inputs)
		return next, sortInputs(inputs)
	}
	_, left := pc.next(world.NewWorld(), indexedKeys(pc.world))
	next, inputs := indexAll(w)
	maps.Copy(inputs, left)
	inputs[Input{Kind: InputMesh}] = struct{}{}
	next.views = next.newViews(nil, nil, nil)
	for _, v := range slices.Concat(pc.views, next.views) {
		inputs[Input{Kind: InputView, A: v.pin.ID, View: v.pin.ID}] = struct{}{}
	}
	return next, sortInputs(inputs)
}

func (pc *PushContext) next(w *world.World, changed []ident.Key) (*PushContext, map[Input]struct{}) {
	t := &transition{settings: pc.settings, inputs: make(map[Input]struct{}), problems: pc.problems.Edit()}
	changes := make(map[string][]change)
	for _, k := range changed {
		changes[k.Kind] = append(changes[k.Kind], change{k, pc.world.Served(k), w.Served(k)})
	}
	next := &PushContext{world: w, mesh: w.MeshConfig(), settings: pc.settings, classes: pc.classes, others: pc.others}
	if next.mesh != pc.mesh && !proto.Equal(next.mesh, pc.mesh) || next.meshKey() != pc.meshKey() {
		t.changed(Input{Kind: InputMesh})
		if !proto.Equal(next.mesh.GetLocalityLbSetting(), pc.mesh.GetLocalityLbSetting()) || next.meshRanks() != pc.meshRanks() {
			t.changed(Input{Kind: InputPlaces})
			t.reclassify(true)
		}
		t.reclassify(!sameServiceNames(next.mesh, pc.mesh))
		next.others = otherRoots(next.mesh)
	}
	next.raw = pc.raw.next(t, changes[resourceKind])
	var hosts map[string]struct{}
	next.services, hosts = pc.services.next(t, slices.Concat(changes[world.ServiceKind], changes[serviceEntryKind], changes[world.NamespaceKind]))
	var moved func(ident.Shard) bool
	next.networks, moved = pc.networks.next(t, w, changes)
	next.endpoints = pc.endpoints.next(t, w, changes, &next.services, &next.networks, moved)
	next.virtualServices = pc.virtualServices.next(t, w, changes[virtualServiceKind])
	next.rules = pc.rules.next(t, changes[destinationRuleKind], &next.services, hosts)
	if next.mutual() != pc.mutual() {
		t.changed(Input{Kind: InputMutualTLS})
		t.reclassify(true)
	}
	next.gateways = pc.gateways.next(t, changes[gatewayKind])
	t.noteFronts(slices.Concat(changes[world.ServiceKind], changes[serviceEntryKind]), pc, next)
	next.policies = pc.policies.next(t, slices.Concat(changes[authorizationKind], changes[requestsKind]))
	next.peers = pc.peers.next(t, changes[peersKind])
	next.telemetry = pc.telemetry.next(t, changes[telemetryKind])
	next.filters = pc.filters.next(t, changes[envoyFilterKind])
	next.sidecars = pc.sidecars.next(t, w, changes[sidecarKind])
	next.grants = pc.grants.next(t, changes[grantKind])
	t.credentials(changes)
	t.tokenKeys(w, changes)
	next.problems = t.problems.Table
	if t.other || !pc.world.SameQuarantinedClients(w) {
		next.classes = new(byte)
	}
	return next, t.inputs
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

// SameProblems reports whether pc and o have the same Diagnostics, if one was made
// from the other.
func (pc *PushContext) SameProblems(o *PushContext) bool { return pc.problems == o.problems }

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
