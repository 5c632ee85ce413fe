package kubeconv

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
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

// FromJSON reads the JSON of a whole object of a kind in the form Converted,
// in which a field that Kubernetes does not have is an error (an *problem.Diagnostic), and
// converts it.
func FromJSON(k *kind.Kind, object []byte) (proto.Message, error) {
	switch k.Name {
	case "Service":
		s, err := decode[corev1.Service](object)
		if err != nil {
			return nil, err
		}
		return Service(s, ""), nil
	case "EndpointSlice":
		s, err := decode[discoveryv1.EndpointSlice](object)
		if err != nil {
			return nil, err
		}
		return new(Keeper).Slice(s).Endpoints(nil)
	case "Pod":
		p, err := decode[corev1.Pod](object)
		if err != nil {
			return nil, err
		}
		return new(Keeper).Pod(p).Workload(nil), nil
	case "Node":
		n, err := decode[corev1.Node](object)
		if err != nil {
			return nil, err
		}
		return Node(n)
	case "Namespace":
		n, err := decode[corev1.Namespace](object)
		if err != nil {
			return nil, err
		}
		return Namespace(n)
	case "Ingress":
		return whole[networkingv1.Ingress](object)
	case "IngressClass":
		return whole[networkingv1.IngressClass](object)
	}
	return nil, fmt.Errorf("a %s is not converted", k.Name)
}

// whole keeps all fields of an object that is a valid T.
func whole[T any](object []byte) (proto.Message, error) {
	if _, err := decode[T](object); err != nil {
		return nil, err
	}
	return validate.FromObject(object)
}

// decode decodes an object and rejects unknown fields outside its status. The
// standard library locates values of a wrong type, sigs.k8s.io/json unknown fields.
func decode[T any](object []byte) (*T, error) {
	into := new(T)
	if err := gojson.Unmarshal(object, into); err != nil {
		e := &problem.Diagnostic{Reason: err.Error()}
		if wrong := (*gojson.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			e.Line = 1 + bytes.Count(object[:min(int(wrong.Offset), len(object))], []byte("\n"))
			e.Reason = fmt.Sprintf("is a JSON %s, want a value of type %s", wrong.Value, wrong.Type)
		}
		return nil, e
	}
	strict, err := json.UnmarshalStrict(object, into, json.DisallowUnknownFields)
	if err != nil {
		return nil, &problem.Diagnostic{Reason: err.Error()}
	}
	for _, err := range strict {
		e := &problem.Diagnostic{Reason: err.Error()}
		if at := json.FieldError(nil); errors.As(err, &at) {
			e.Field = at.FieldPath()
			e.Reason = "Kubernetes has no such field"
		}
		if !strings.HasPrefix(e.Field, "status.") {
			return nil, e
		}
	}
	return into, nil
}
