package validate

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/problem"
)

// NoEffect is a field that is accepted and changes nothing in this build.
type NoEffect struct {
	Kind string
	// Field is the path below spec, without indices and keys, as in protobuf's
	// JSON. "field=VALUE" is one value of an enumeration or a text.
	Field string
	// As is the path that documents use, if it is not Field.
	As string
	// Instead is what happens.
	Instead string
}

// NoEffects returns the one table of what is accepted and has no effect yet, in
// the order of kinds and fields.
func NoEffects() []NoEffect { return slices.Clone(noEffects) }

// noEffect warns of a field that is set and has no effect: there is a row of
// NoEffects for it, or for one value of it.
func (c *checker) noEffect(set bool, at *fieldPath, value ...string) {
	if !set {
		return
	}
	path, reason := strings.TrimSuffix(string(at.appendPlain(nil)), "."), "has no effect yet: "
	for _, v := range value {
		path, reason = path+"="+v, v+" "+reason
	}
	i := slices.IndexFunc(noEffects, func(row NoEffect) bool { return row.Kind == c.kind && cmp.Or(row.As, row.Field) == path })
	c.without(at, reason+noEffects[i].Instead) // TestNoEffects holds that there is a row
}

func (c *checker) without(at *fieldPath, reason string) {
	c.add(problem.Warning, "no-effect", at, "do not rely on it", reason)
}

// meshConfigFields warns of the fields of a MeshConfig, most of which have no
// effect.
func (c *checker) meshConfigFields(m *meshconfig.MeshConfig) {
	warn := func(at *fieldPath, m protoreflect.Message, effective map[string]bool) {
		m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			c.noEffect(!effective[fd.JSONName()], at.field(fd.JSONName()))
			return true
		})
	}
	warn(root, m.ProtoReflect(), meshConfigEffects)
	warn(root.field("defaultConfig"), m.GetDefaultConfig().ProtoReflect(), proxyConfigEffects)
}
