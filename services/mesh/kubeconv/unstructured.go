package kubeconv

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
)

// FromUnstructured reads an object as an API server serves it, of a kind in the
// form Spec or Whole, or one that is Converted as a whole. What a kind of
// protobuf does not have is an error, as in files (an *problem.Diagnostic, with the field);
// status and what only the API server cares about is not looked at.
func FromUnstructured(k *kind.Kind, object map[string]any) (proto.Message, error) {
	if k.Form != kind.Spec {
		return whole(object)
	}
	for _, field := range slices.Sorted(maps.Keys(object)) {
		switch field {
		case "apiVersion", "kind", "metadata", "spec", "status":
		default:
			return nil, &problem.Diagnostic{Field: field, Reason: "unknown field"}
		}
	}
	spec := []byte("{}")
	if object["spec"] != nil {
		var err error
		if spec, err = json.Marshal(object["spec"]); err != nil {
			return nil, &problem.Diagnostic{Field: "spec", Reason: err.Error()}
		}
	}
	m, err := k.DecodeJSON(spec)
	if err != nil {
		// JSON in one line tells no fields apart; a manifest has each on a line of its own.
		d := manifest.Spec(spec)
		_, bad := DecodeSpec(k, &d)
		return nil, bad
	}
	u := unstructured.Unstructured{Object: object}
	return k.Annotated(m, u.GetAnnotations())
}

// whole converts an object of a kind without a schema.
func whole(object map[string]any) (proto.Message, error) {
	b, err := json.Marshal(object)
	if err != nil {
		return nil, &problem.Diagnostic{Reason: err.Error()}
	}
	return validate.FromObject(b)
}

// DecodeSpec decodes the spec of d. The problem has the field and its line.
func DecodeSpec(k *kind.Kind, d *manifest.Document) (proto.Message, *problem.Diagnostic) {
	if d.Err != nil {
		return nil, d.Err
	}
	m, err := k.DecodeJSON(d.Spec)
	if bad, ok := errors.AsType[*problem.Diagnostic](err); ok {
		bad.Field, bad.Line = d.Place(bad.Line)
		return nil, bad
	}
	return m, nil
}
