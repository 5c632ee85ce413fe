package kubeconv

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// Converter converts the objects of one cluster. It is safe for concurrent use
// if its Lookup is; nobody writes to its fields any more.
type Converter struct {
	// DomainSuffix is that of the cluster's Services; empty: the MeshPolicy's.
	DomainSuffix string
	// SecretKey is the key of the HMACs over Secrets, the same for all that
	// compare them; empty: a rotation is no event.
	SecretKey []byte
	// Lookup finds what endpoints refer to; nil knows nothing.
	Lookup Lookup
}

// Payload is what the log carries of an object of a kind: a *corev1.Service,
// Node, Namespace, Secret or ConfigMap, a *Pod or *Slice, or of all other kinds
// an *unstructured.Unstructured. What cannot be converted is a payload too: an
// Undecoded. Equal content has equal payloads.
//
// It is nil for what is not to be on the log, as it is or any more: a Pod that
// has no address or has ended (POD-3), a Secret that is no TLS credential.
func (c *Converter) Payload(k *kind.Kind, object any) *anypb.Any {
	m, err := c.convert(k, object)
	if m == nil && err == nil {
		return nil
	}
	var p *anypb.Any
	if err == nil {
		p, err = encoded(k, m)
	}
	if err != nil {
		p = undecoded(content(object), "application/json", err)
	}
	return p
}

// convert returns nil for what is not to be on the log.
func (c *Converter) convert(k *kind.Kind, object any) (proto.Message, error) {
	switch o := object.(type) {
	case *corev1.Service:
		return Service(o, c.DomainSuffix), nil
	case *Slice:
		return o.Endpoints(c.Lookup)
	case *Pod:
		if len(o.Addresses) == 0 {
			return nil, nil
		}
		var node *registryv1.Locality
		if c.Lookup != nil && o.Node != "" {
			node = c.Lookup.Locality(o.Node)
		}
		return o.Workload(node), nil
	case *corev1.Node:
		return Node(o)
	case *corev1.Namespace:
		return Namespace(o)
	case *corev1.Secret:
		if m, is := Secret(o, c.SecretKey); is {
			return m, nil
		}
		return nil, nil
	case *corev1.ConfigMap:
		return ConfigMap(o)
	case *unstructured.Unstructured:
		return FromUnstructured(k, o.Object)
	}
	return nil, fmt.Errorf("a %T is not converted", object)
}

// encoded is the payload of m, unless there is a private key in it: the log is no
// place for keys.
func encoded(k *kind.Kind, m proto.Message) (*anypb.Any, error) {
	b, err := k.Encode(m)
	switch {
	case err != nil: // a text that is no UTF-8
		return nil, err
	case validate.HasPrivateKey(b):
		return nil, &problem.Diagnostic{Reason: "holds a private key, and whoever reads the log would read it; put it into a Secret"}
	}
	return &anypb.Any{TypeUrl: k.TypeURL, Value: b}, nil
}

// undecoded offers data that could not be converted, for its key to keep its
// last good value.
func undecoded(data []byte, mediaType string, why error) *anypb.Any {
	if validate.HasPrivateKey(data) {
		data = nil
	}
	u := &registryv1.Undecoded{Data: data, MediaType: mediaType, Error: valid(why.Error())}
	if e := (*problem.Diagnostic)(nil); errors.As(why, &e) {
		u.Field, u.Error = valid(e.Field), valid(e.Reason)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // texts and bytes: it cannot be
		b = nil
	}
	return &anypb.Any{TypeUrl: ident.Undecoded, Value: b}
}

// content is an object as JSON, without what is no content, so that only a change
// of content is one; nil of what may hold keys, or is not an object any more.
func content(object any) []byte {
	switch o := object.(type) {
	case *corev1.Secret, *corev1.ConfigMap, *Pod, *Slice:
		return nil
	case *unstructured.Unstructured:
		object = o.Object
	}
	b, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	m, err := validate.FromObject(b)
	if err != nil {
		return nil
	}
	return m.(*registryv1.Object).GetJson()
}
