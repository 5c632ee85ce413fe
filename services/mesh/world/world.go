package world

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
)

const (
	policyKind = "MeshPolicy"
	configKind = "MeshConfig"
	// CountedName is the name of the only MeshPolicy, MeshConfig and MeshNetworks
	// that are in effect; they have no namespace.
	CountedName = "default"
)

// The kinds that services and their endpoints come from.
const (
	ServiceKind   = "Service"
	EndpointsKind = "EndpointSlice"
	WorkloadKind  = "Pod"
	NodeKind      = "Node"
	NamespaceKind = "Namespace"
)

// OfKubernetes reports whether k is the key of a Kubernetes Service, which comes from a
// cluster or is written in a document. Its name gives it its host, and no other source
// may have that host (AGG-1). A Service of a registry says its host itself.
func OfKubernetes(k ident.Key) bool {
	return k.Kind == ServiceKind && (k.Source == "kubernetes" || k.Source == "file" || k.Source == ident.API)
}

// Object is the value of a key. It is immutable and shared.
type Object struct {
	Key     ident.Key
	Created time.Time // zero if its source has none
	Value   ident.Value
	// Message is Value decoded. It must not be changed. Objects of a World have
	// one; in a RowChange, nil means that Apply decodes Value.
	Message proto.Message
}

// World is the effective configuration at a position: the last good value of
// each key, or the value that an overlay puts in its place, and the winning copy
// of each object. It is immutable; worlds share what did not change.
type World struct {
	places   table.Table[ident.Key, *place]
	overlays map[string]Overlay
	// quarantines are the overlays over resources; nil: none.
	quarantines *quarantines
	views       []*view                                 // overlays for some proxies, the one that counts first
	kinds       map[string]table.Table[Name, []*Object] // copies of an object, the winner first; never empty

	// For Diagnostics.
	contested table.Table[identity, struct{}] // objects that have several copies
	opaque    table.Table[ident.Key, string]  // values that this build cannot read, and why
	unknown   map[string]struct{}             // rows that are neither values nor overlays

	policy Policy
	config *meshconfig.MeshConfig
}

// place is the content of one key. It is immutable.
type place struct {
	good   *Object // without a Message until it is served
	words  []word  // of overlays, the effective one first
	object *Object // nil: not served
}

// word is the value that one overlay gives a key.
type word struct {
	overlay *Overlay
	object  *Object // nil: not served; without a Message
}

// Name is an object's name within its kind.
type Name struct{ Namespace, Name string }

// identity is common to the copies of one object.
type identity struct {
	kind string
	Name
}

func identityOf(k ident.Key) identity { return identity{k.Kind, Name{k.Namespace, k.Name}} }

// NewWorld returns the empty world.
func NewWorld() *World {
	policy := policyOf(nil)
	return &World{policy: policy, config: meshConfigOf(nil, policy)}
}

// merged are the kinds whose copies all count: mesh/index merges the
// Services and endpoints of several registries, and each cluster has its own
// nodes, namespaces, Secrets and ConfigMaps.
var merged = []string{ServiceKind, EndpointsKind, WorkloadKind, NodeKind, NamespaceKind, "Secret", "ConfigMap"}

func isMerged(kind string) bool { return slices.Contains(merged, kind) }

// counting returns the copies of an object that count.
func counting(kind string, copies []*Object) []*Object {
	if len(copies) > 1 && !isMerged(kind) {
		return copies[:1]
	}
	return copies
}

// Objects yields the objects of a kind that count, sorted by namespace and name:
// the winning copy of each or, of merged kinds, every copy, the winner first.
func (w *World) Objects(kind string) iter.Seq[Object] {
	return func(yield func(Object) bool) {
		t := w.kinds[kind]
		lists := make([][]*Object, 0, t.Len())
		for _, copies := range t.All() {
			lists = append(lists, counting(kind, copies))
		}
		slices.SortFunc(lists, func(a, b []*Object) int {
			return cmp.Or(cmp.Compare(a[0].Key.Namespace, b[0].Key.Namespace), cmp.Compare(a[0].Key.Name, b[0].Key.Name))
		})
		for _, list := range lists {
			for _, o := range list {
				if !yield(*o) {
					return
				}
			}
		}
	}
}

// SameKind reports whether the objects of a kind are the same in o, if one world was made from
// the other.
func (w *World) SameKind(o *World, kind string) bool { return w.kinds[kind] == o.kinds[kind] }

// Served returns the object of k if Objects yields it; else nil.
func (w *World) Served(k ident.Key) *Object {
	for _, o := range counting(k.Kind, w.copies(identityOf(k))) {
		if o.Key == k {
			return o
		}
	}
	return nil
}

// Copy returns the object of k, overlays included, whether it counts or loses to the
// copy of another source; nil if there is none.
func (w *World) Copy(k ident.Key) *Object {
	if p := w.places.Get(k); p != nil {
		return p.object
	}
	return nil
}

// Winner returns the winning copy of the object of k, or nil.
func (w *World) Winner(k ident.Key) *Object {
	if copies := w.copies(identityOf(k)); len(copies) > 0 {
		return copies[0]
	}
	return nil
}

func (w *World) copies(id identity) []*Object { return w.kinds[id.kind].Get(id.Name) }

// Policy returns the effective MeshPolicy: the one named CountedName; of several
// copies the winner by the default priority.
func (w *World) Policy() Policy {
	p := w.policy
	p.SourcePriority, p.Required = slices.Clone(p.SourcePriority), slices.Clone(p.Required)
	return p
}

// MeshConfig returns Istio's MeshConfig with its defaults. The caller must not
// change it.
func (w *World) MeshConfig() *meshconfig.MeshConfig { return w.config }

// Diagnostics returns, sorted, why objects and resources are not served: losing
// copies, values that this build cannot read, and resources in quarantine.
func (w *World) Diagnostics() []problem.Diagnostic {
	var all []problem.Diagnostic
	for k, reason := range w.opaque.All() {
		all = append(all, problem.Diagnostic{
			Severity: problem.Warning, Code: "unreadable", Key: k, Reason: reason,
			Advice: "run the build that published it", Effect: "this build serves without it",
		})
	}
	all = append(all, w.quarantines.diagnostics()...)
	for row := range w.unknown {
		all = append(all, problem.Diagnostic{
			Severity: problem.Warning, Code: "unreadable", Reason: fmt.Sprintf("row %q is of no kind that this build knows", row),
			Advice: "run the build that published it", Effect: "this build serves without it",
		})
	}
	for id := range w.contested.All() {
		if isMerged(id.kind) {
			continue
		}
		copies := w.copies(id)
		for _, o := range copies[1:] {
			if o.Key.Kind == policyKind && o.Key.Source == DefaultsSource {
				continue // it is meant to lose
			}
			all = append(all, problem.Diagnostic{
				Severity: problem.Warning, Code: "conflict", Key: o.Key,
				Reason: w.whyLost(copies[0], o),
				Advice: "remove one of the copies, or order the sources in sourcePriority of MeshPolicy default",
				Effect: "this copy is not served",
			})
		}
	}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return all
}

// priority returns the source priority for copies of a kind. For the policy
// itself that cannot be its own.
func (w *World) priority(kind string) []string {
	if kind == policyKind {
		return DefaultPolicy().SourcePriority
	}
	return w.policy.SourcePriority
}

func (w *World) whyLost(winner, loser *Object) string {
	how := WhyWins(w.priority(loser.Key.Kind), winner.Key, winner.Created, loser.Key, loser.Created)
	return fmt.Sprintf("the copy of %s wins: it %s", winner.Key.Shard(), how)
}
