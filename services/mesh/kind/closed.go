package kind

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/manifest"
)

// selecting is a message of a kind that selects workloads or targets.
type selecting interface {
	proto.Message
	GetSelector() *typev1beta1.WorkloadSelector
}

// targeting is a message of a kind that may name targets instead.
type targeting interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// Closed returns what is served in place of a value of this kind that is not good, if
// no value of its object ever was: for a kind that fails closed a registry.v1.Closed
// that selects what v selects (POL-15). If that cannot be read, it selects the whole
// namespace. For other kinds, and for a dry run, ok is false: nothing is served.
func (k *Kind) Closed(v ident.Value) (closed ident.Value, ok bool) {
	if !k.Security || k.isDryRun(v) {
		return ident.Value{}, false
	}
	out := &registryv1.Closed{}
	if m, ok := k.selection(v); ok {
		out.MatchLabels = m.GetSelector().GetMatchLabels()
		for _, t := range Targets(m) {
			out.Targets = append(out.Targets, &registryv1.Closed_Target{Kind: t.GetKind(), Name: t.GetName()})
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
	if err != nil { // a label is not UTF-8
		b = nil
	}
	return ident.Value{Type: ident.Closed, Bytes: b, Created: v.Created}, true
}

// Targets returns the targets that a policy names.
func Targets(m proto.Message) []*typev1beta1.PolicyTargetReference {
	t, ok := m.(targeting)
	if !ok {
		return nil
	}
	all := t.GetTargetRefs()
	if t.GetTargetRef() != nil {
		all = append([]*typev1beta1.PolicyTargetReference{t.GetTargetRef()}, all...)
	}
	return all
}

// source reads the object that a watcher could not decode, as far as it can be read; the
// spec is nil if it cannot.
func source(v ident.Value) (manifest.Metadata, map[string]json.RawMessage) {
	var u registryv1.Undecoded
	if v.Type != ident.Undecoded || proto.Unmarshal(v.Bytes, &u) != nil {
		return manifest.Metadata{}, nil
	}
	documents := manifest.Parse(u.GetData()) // JSON is YAML
	if len(documents) != 1 || documents[0].Err != nil {
		return manifest.Metadata{}, nil
	}
	var spec map[string]json.RawMessage
	if json.Unmarshal(documents[0].Spec, &spec) != nil {
		return manifest.Metadata{}, nil
	}
	return documents[0].Metadata, spec
}

// selection reads what v selects, even if other fields of v cannot be read.
func (k *Kind) selection(v ident.Value) (selecting, bool) {
	if m, err := k.Decode(v.Type, v.Bytes); err == nil {
		s, ok := selectionOf(m).(selecting)
		return s, ok
	}
	_, spec := source(v)
	if spec == nil {
		return nil, false
	}
	only := map[string]json.RawMessage{}
	for _, field := range []string{"selector", "targetRef", "targetRefs"} {
		if text, ok := spec[field]; ok {
			only[field] = text
		}
	}
	text, err := json.Marshal(only)
	if err != nil {
		return nil, false
	}
	m, ok := k.new().(selecting)
	return m, ok && protojson.Unmarshal(text, m) == nil
}
