// Package kind is the one table of the kinds of objects that meshlog knows:
// group, versions and name, the protobuf type of the payload, scope,
// validation, and which changes concern endpoints only. What to watch, which
// file documents to accept and what is valid is derived from it.
//
// It is pure.
package kind

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/problem"
)

// Kind is one row of the table. Nobody writes to it.
type Kind struct {
	Group    string   // "networking.istio.io"; empty for the core of Kubernetes
	Versions []string // accepted ones, the preferred first
	// Name is unique in the table and part of an object's key. It is the kind
	// that a document names; of two groups with the same one, that of
	// Kubernetes has the prefix "Kubernetes", as in Istio: KubernetesGateway.
	Name string
	// Document is the kind that a document names, where it is not Name.
	Document   string
	Namespaced bool
	// Only is the one object name that counts; empty: all do.
	Only string
	// ClusterOnly: it is taken from clusters, and never from files.
	ClusterOnly bool
	// TypeURL of the payload on the log.
	TypeURL string
	// Form says how an object becomes a payload.
	Form Form
	// Meaning says what comes of it in this build.
	Meaning Meaning
	// Security says that the kind fails closed: a value that cannot be read
	// never falls back silently.
	Security bool

	new           func() proto.Message
	validate      func(proto.Message) []problem.Diagnostic
	endpointsOnly func(old, new proto.Message) bool
}

// Form says how an object of a source becomes a payload.
type Form uint8

// Forms of kinds.
const (
	// Spec: the payload is the object's spec, proto3 JSON.
	Spec Form = iota
	// Whole: the payload is a registry.v1.Object, which FromObject makes of
	// the whole object; no schema is known, all fields are taken.
	Whole
	// Converted: what the payload says is taken from a Kubernetes object by
	// mesh/kubeconv.
	Converted
)

// Meaning is what this build makes of the objects of a kind.
type Meaning uint8

// Meanings of kinds.
const (
	// NotYet: they are carried on the log and have no effect.
	NotYet Meaning = iota
	// Context: others are understood by them; alone they have no effect.
	Context
	// Served: proxies are configured by them.
	Served
)

const typePrefix = "type.googleapis.com/"

// All is the table, sorted by name.
func All() []*Kind {
	all := slices.Clone(table)
	slices.SortFunc(all, func(a, b *Kind) int { return cmp.Compare(a.Name, b.Name) })
	return all
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

// DocumentKind is what a document of this kind writes as kind.
func (k *Kind) DocumentKind() string { return cmp.Or(k.Document, k.Name) }

// APIVersion is what a document of this kind writes as apiVersion.
func (k *Kind) APIVersion() string {
	if k.Group == coreGroup {
		return k.Versions[0]
	}
	return k.Group + "/" + k.Versions[0]
}

// Validate says what is wrong in m, a message that Decode or DecodeJSON of
// this kind returned; what is only a warning last, and cut after 20. Without a
// Problem that is more than a warning the object is good.
func (k *Kind) Validate(m proto.Message) []problem.Diagnostic {
	if k.validate == nil {
		return nil
	}
	return k.validate(m)
}

// EndpointsOnly says whether going from old to new, either of which may be nil
// for an object that was or is not there, changes nothing but endpoints.
func (k *Kind) EndpointsOnly(old, new proto.Message) bool {
	return k.endpointsOnly != nil && k.endpointsOnly(old, new)
}
