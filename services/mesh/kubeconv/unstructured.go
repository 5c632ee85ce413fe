package kubeconv

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

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
		b, err := json.Marshal(object)
		if err != nil {
			return nil, &problem.Diagnostic{Reason: err.Error()}
		}
		return validate.FromObject(b)
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
		return nil, located(k, manifest.Spec(spec), err)
	}
	return m, nil
}

// located is an error of a spec with its field. JSON in one line tells no
// fields apart, so it is read again as d, where each is on a line of its own.
func located(k *kind.Kind, d manifest.Document, err error) *problem.Diagnostic {
	e := &problem.Diagnostic{Field: "spec", Reason: err.Error()}
	if d.Err != nil {
		return e
	}
	var syntax *problem.Diagnostic
	if _, err := k.DecodeJSON(d.Spec); errors.As(err, &syntax) {
		e.Reason = syntax.Reason
		e.Field, e.Line = d.Place(syntax.Line)
	}
	return e
}

func valid(s string) string { return strings.ToValidUTF8(s, "?") }
