package validate

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/grant"
	"meshlog.dev/services/mesh/problem"
)

// TraceAnnotation names the trace of an object's change, as a W3C traceparent: a
// program that writes the object sets it. It is not content.
const TraceAnnotation = "meshlog.dev/traceparent"

// LastApplied is kubectl's annotation that repeats the object. It is not content.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// FromObject makes a registry.v1.Object from the JSON of an object whose kind has
// the form Whole: labels, annotations, and all fields except status. Equal objects
// have equal bytes, whatever their layout.
func FromObject(object []byte) (proto.Message, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	out := &registryv1.Object{}
	out.ApiVersion, _ = o["apiVersion"].(string)
	out.Kind, _ = o["kind"].(string)
	meta, _ := o["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, field := range []string{"labels", "annotations"} {
		texts, _ := meta[field].(map[string]any)
		delete(texts, LastApplied)
		delete(texts, TraceAnnotation)
		if len(texts) > 0 {
			kept[field] = texts
		}
	}
	for _, field := range []string{"apiVersion", "kind", "metadata", "status"} {
		delete(o, field)
	}
	if len(kept) > 0 {
		o["metadata"] = kept
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	out.Json = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return out, nil
}

// ReferenceGrant refuses a ReferenceGrant that cannot be read, or that permits nothing.
func ReferenceGrant(m proto.Message) []problem.Diagnostic {
	c := checker{}
	if _, err := grant.Read(m.(*registryv1.Object)); err != nil {
		c.errorf(&fieldPath{name: "spec"}, "write from with kind and namespace, and to with kind", "%v", err)
	}
	return c.result()
}
