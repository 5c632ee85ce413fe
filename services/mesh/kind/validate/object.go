package validate

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// TraceAnnotation is where who writes an object says which trace its change
// belongs to: a W3C traceparent. It is no content.
const TraceAnnotation = "meshlog.dev/traceparent"

// LastApplied is an annotation of kubectl that repeats the object.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// FromObject makes a registry.v1.Object of the JSON of a whole object, for
// kinds in that Form: labels and annotations, and all fields but the status.
// Equal objects have equal bytes, whatever their layout.
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
