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

// FromUnstructured converts an object of an API server, of a kind in the form Spec or
// Whole, or of a Converted kind that keeps the whole object. A field that a protobuf
// kind does not have is an error (an *Error with the field), as in files. Status and
// the API server's own metadata are ignored.
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

// located adds the field to an error of a spec. The error has only a line, so located
// decodes the spec again as d, where each field has its own line.
func located(k *kind.Kind, d manifest.Document, err error) *Error {
	e := &Error{Field: "spec", Reason: err.Error()}
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
