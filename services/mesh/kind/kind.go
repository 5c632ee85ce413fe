// Package kind holds the one table of the kinds of objects that meshlog knows:
// group, versions and name, the protobuf type of the payload, scope,
// validation, and which changes concern endpoints only. The watchers derive from
// it what they watch and which documents they accept.
//
// It is pure.
package kind

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
)

// Kind is one row of the table. It is read-only.
type Kind struct {
	Group    string   // "networking.istio.io"; empty for the core of Kubernetes
	Versions []string // accepted ones, the preferred first
	// Name is unique in the table and part of an object's key. It is the kind
	// that a document names. If two groups have the same kind, the Kubernetes
	// group's has the prefix "Kubernetes", as in Istio: KubernetesGateway.
	Name string
	// Document is the kind that a document names, if it is not Name.
	Document   string
	Namespaced bool
	// Only is the name of the one object that has an effect; empty: all have.
	Only string
	// ClusterOnly: watchers take it from clusters, and never from files.
	ClusterOnly bool
	// TypeURL of the payload on the log.
	TypeURL string
	// Form says how an object becomes a payload.
	Form Form
	// Meaning says what this build does with it.
	Meaning Meaning
	// Security: the kind fails closed. A value that cannot be read never falls
	// back silently.
	Security bool
	// AtOnce: what an object permits must end everywhere at once when it is removed.
	AtOnce bool
	// State: its objects say what runs now, or hold keys. They are no configuration, so
	// operators cannot roll them back.
	State bool

	new           func() proto.Message
	validate      func(proto.Message) []problem.Diagnostic
	endpointsOnly func(old, new proto.Message) bool
}

// Form tells how an object of a source becomes a payload.
type Form uint8

// Forms of kinds.
const (
	// Spec: the payload is the object's spec, proto3 JSON.
	Spec Form = iota
	// Whole: the payload is a registry.v1.Object, which FromObject makes from
	// the whole object: without a schema, it takes all fields.
	Whole
	// Converted: mesh/kubeconv makes the payload from a Kubernetes object.
	Converted
	// Produced: a process of meshlog makes the payload; no document and no cluster
	// has such an object.
	Produced
)

// Meaning is what this build does with the objects of a kind.
type Meaning uint8

// Meanings of kinds.
const (
	// NotYet: the log carries them; they have no effect.
	NotYet Meaning = iota
	// Context: they complete other objects; alone they have no effect.
	Context
	// Served: they configure proxies.
	Served
)

// All returns the table, sorted by name.
func All() []*Kind {
	return slices.SortedFunc(slices.Values(table), func(a, b *Kind) int { return cmp.Compare(a.Name, b.Name) })
}

// Istio returns the kinds that MCP-over-xDS carries: Istio's, with a namespace.
func Istio() []*Kind {
	return slices.DeleteFunc(All(), func(k *Kind) bool {
		return !strings.HasSuffix(k.Group, ".istio.io") || !k.Namespaced || k.Form != Spec
	})
}

// ByName finds a kind by its name.
func ByName(name string) (*Kind, bool) {
	k, ok := byName[name]
	return k, ok
}

var byName = func() map[string]*Kind {
	kinds := make(map[string]*Kind, len(table))
	for _, k := range table {
		kinds[k.Name] = k
	}
	return kinds
}()

// ByGVK finds a kind by group, version and kind, as a document names it.
func ByGVK(group, version, document string) (*Kind, bool) {
	for _, k := range table {
		if k.Group == group && k.DocumentKind() == document && slices.Contains(k.Versions, version) {
			return k, true
		}
	}
	return nil, false
}

// DocumentKind returns the kind that a document of this kind names.
func (k *Kind) DocumentKind() string { return cmp.Or(k.Document, k.Name) }

// APIVersion returns the preferred apiVersion for a document of this kind.
func (k *Kind) APIVersion() string {
	if k.Group == coreGroup {
		return k.Versions[0]
	}
	return k.Group + "/" + k.Versions[0]
}

// Validate returns the problems in m, a message that Decode or DecodeJSON of this
// kind returned, as an object of that namespace: errors first, and about 20 at
// most. The object is good unless one is an error. A good object costs no
// allocation.
func (k *Kind) Validate(namespace string, m proto.Message) []problem.Diagnostic {
	if _, closed := m.(*registryv1.Closed); closed || k.validate == nil {
		return nil
	}
	switch m := m.(type) {
	case *DryRun:
		return append(k.Validate(namespace, m.Inner), m.problem())
	case *ProxyKeys:
		return m.problems()
	}
	problems := k.validate(m)
	if twice, is := validate.OwnNamespaceTwice(namespace, m); is {
		return slices.Insert(problems, 0, twice)
	}
	if policy, is := m.(*configv1.MeshPolicy); is {
		problems = append(problems, validate.SourceRuleKinds(policy, isKnown)...)
		problems = append(problems, validate.MCPKinds(policy, isIstio)...)
	}
	return problems
}

// isKnown reports whether a glob matches the name of a kind.
func isKnown(glob string) bool {
	return slices.ContainsFunc(table, func(k *Kind) bool { return permit.Match(glob, k.Name) })
}

// isIstio is isKnown for the kinds that MCP-over-xDS carries.
func isIstio(glob string) bool {
	return slices.ContainsFunc(Istio(), func(k *Kind) bool { return permit.Match(glob, k.Name) })
}

// EndpointsOnly reports whether the change from old to new changes nothing but
// endpoints. nil stands for no object.
func (k *Kind) EndpointsOnly(old, new proto.Message) bool {
	return k.endpointsOnly != nil && k.endpointsOnly(old, new)
}

// Staged reports whether some proxies may have an object of the kind while others have
// another one: configuration, but neither policies and grants, which must hold everywhere at
// once, nor the settings of the whole mesh, which say whom proxies trust.
func (k *Kind) Staged() bool { return !k.State && !k.Security && !k.AtOnce && k.Only == "" }
