// Package kind is the one table of the kinds of objects that meshlog knows:
// group, versions and name, the protobuf type of the payload, scope,
// validation, and which changes concern endpoints only. What to watch, which
// file documents to accept and what is valid is derived from it.
//
// It is pure.
package kind

//go:generate go run ./gen

import (
	"slices"

	"google.golang.org/protobuf/proto"

	configv1 "meshlog.dev/proto/meshlog/config/v1"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Kind is one row of the table. Nobody writes to it.
type Kind struct {
	Group      string   // "envoy.meshlog.dev"
	Versions   []string // accepted ones, the preferred first
	Name       string   // "Resource"; unique in the table
	Namespaced bool
	// Only is the one object name that counts; empty: all do.
	Only string
	// TypeURL of the payload on the log.
	TypeURL string
	// Security says that the kind fails closed: a value that cannot be read
	// never falls back silently.
	Security bool

	new           func() proto.Message
	validate      func(proto.Message) []Problem
	endpointsOnly func(old, new proto.Message) bool
}

// Problem is something wrong in an object.
type Problem struct {
	Field   string // path of the field, as the user writes it
	Reason  string
	Advice  string // what to do
	Warning bool   // the object counts all the same
}

const typePrefix = "type.googleapis.com/"

var table = []*Kind{
	{
		Group: "envoy.meshlog.dev", Versions: []string{"v1"}, Name: "Resource", Namespaced: true,
		TypeURL:       typePrefix + "meshlog.config.v1.Resource",
		new:           func() proto.Message { return new(configv1.Resource) },
		validate:      validateResource,
		endpointsOnly: resourceEndpointsOnly,
	},
	{
		Group: "mesh.istio.io", Versions: []string{"v1alpha1"}, Name: "MeshConfig", Only: "default",
		TypeURL:  typePrefix + "istio.mesh.v1alpha1.MeshConfig",
		new:      func() proto.Message { return new(meshv1alpha1.MeshConfig) },
		validate: validateMeshConfig,
	},
	{
		Group: "meshlog.dev", Versions: []string{"v1"}, Name: "MeshPolicy", Only: "default",
		TypeURL:  typePrefix + "meshlog.config.v1.MeshPolicy",
		new:      func() proto.Message { return new(configv1.MeshPolicy) },
		validate: validateMeshPolicy,
	},
}

// All is the table, sorted by name.
func All() []*Kind {
	all := slices.Clone(table)
	slices.SortFunc(all, func(a, b *Kind) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// ByName finds a kind by its name.
func ByName(name string) (*Kind, bool) {
	return find(func(k *Kind) bool { return k.Name == name })
}

// ByGVK finds a kind by group, version and name, as a document names it.
func ByGVK(group, version, name string) (*Kind, bool) {
	return find(func(k *Kind) bool {
		return k.Name == name && k.Group == group && slices.Contains(k.Versions, version)
	})
}

func find(is func(*Kind) bool) (*Kind, bool) {
	if i := slices.IndexFunc(table, is); i >= 0 {
		return table[i], true
	}
	return nil, false
}

// APIVersion is what a document of this kind writes as apiVersion.
func (k *Kind) APIVersion() string { return k.Group + "/" + k.Versions[0] }

// Validate says what is wrong in m, a message that Decode or DecodeJSON of
// this kind returned; sorted, and cut after 20. Without a Problem that is more
// than a warning the object is good.
func (k *Kind) Validate(m proto.Message) []Problem { return k.validate(m) }

// EndpointsOnly says whether going from old to new, either of which may be nil
// for an object that was or is not there, changes nothing but endpoints.
func (k *Kind) EndpointsOnly(old, new proto.Message) bool {
	return k.endpointsOnly != nil && k.endpointsOnly(old, new)
}
