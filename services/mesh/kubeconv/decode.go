package kubeconv

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/json"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// objectTypes has the types of the kinds in the form Converted that files may hold.
var objectTypes = map[string]func() any{
	"Service":       func() any { return new(corev1.Service) },
	"EndpointSlice": func() any { return new(discoveryv1.EndpointSlice) },
	"Pod":           func() any { return new(corev1.Pod) },
	"Node":          func() any { return new(corev1.Node) },
	"Namespace":     func() any { return new(corev1.Namespace) },
	"Ingress":       func() any { return new(networkingv1.Ingress) },
	"IngressClass":  func() any { return new(networkingv1.IngressClass) },
}

// FromJSON reads the JSON of a whole object of a kind in the form Converted, and
// converts it. A field that Kubernetes does not have is an error, a
// *problem.Diagnostic.
func FromJSON(k *kind.Kind, object []byte) (proto.Message, error) { return fromJSON(k.Name, object) }

func fromJSON(kind string, object []byte) (proto.Message, error) {
	newObject, ok := objectTypes[kind]
	if !ok {
		return nil, fmt.Errorf("a %s is not converted", kind)
	}
	into := newObject()
	if err := decode(object, into); err != nil {
		return nil, err
	}
	switch o := into.(type) {
	case *discoveryv1.EndpointSlice:
		return new(Keeper).Slice(o).Endpoints(nil)
	case *corev1.Pod:
		return new(Keeper).Pod(o).Workload(nil), nil
	case *networkingv1.Ingress, *networkingv1.IngressClass:
		return validate.FromObject(object)
	}
	return new(Converter).convert(nil, into)
}

// decode decodes an object and rejects unknown fields outside its status. The
// standard library locates values of a wrong type, sigs.k8s.io/json unknown fields.
func decode(object []byte, into any) error {
	if err := gojson.Unmarshal(object, into); err != nil {
		e := &problem.Diagnostic{Reason: err.Error()}
		if wrong := (*gojson.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			e.Line = 1 + bytes.Count(object[:min(int(wrong.Offset), len(object))], []byte("\n"))
			e.Reason = fmt.Sprintf("is a JSON %s, want a value of type %s", wrong.Value, wrong.Type)
		}
		return e
	}
	strict, err := json.UnmarshalStrict(object, into, json.DisallowUnknownFields)
	if err != nil {
		return &problem.Diagnostic{Reason: err.Error()}
	}
	for _, err := range strict {
		e := &problem.Diagnostic{Reason: err.Error()}
		if at := json.FieldError(nil); errors.As(err, &at) {
			e.Field = at.FieldPath()
			e.Reason = "Kubernetes has no such field"
			if meant, ok := meant(reflect.TypeOf(into), e.Field); ok {
				e.Advice = "did you mean " + meant + "?"
			}
		}
		if !strings.HasPrefix(e.Field, "status.") {
			return e
		}
	}
	return nil
}
