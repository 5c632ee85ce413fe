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

// Converter converts the objects of one cluster. It is safe for concurrent use if its
// Lookup is.
type Converter struct {
	// DomainSuffix is the domain of the cluster's Services; empty means the
	// MeshPolicy's.
	DomainSuffix string
	// SecretKey is the key of the HMACs over Secrets, the same for all watchers. If it
	// is empty, a rotation is not a change.
	SecretKey []byte
	// Lookup finds the objects that endpoints refer to. It may be nil.
	Lookup Lookup
}

// Payload returns the content to publish for an object of a kind: a *corev1.Service,
// Node, Namespace, Secret or ConfigMap, a *Pod or *Slice, or an
// *unstructured.Unstructured of any other kind. An object that cannot be converted
// becomes an Undecoded. Equal content has equal payloads.
//
// Payload returns nil for an object that is not published: a Pod without an address or
// that has ended (POD-3), or a Secret that is not a TLS credential.
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

// convert returns nil for an object that is not published.
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

// encoded returns the payload of m, or an error if m has a private key, which must not
// be on the log.
func encoded(k *kind.Kind, m proto.Message) (*anypb.Any, error) {
	b, err := k.Encode(m)
	switch {
	case err != nil: // a text is not UTF-8
		return nil, err
	case validate.HasPrivateKey(b):
		return nil, &problem.Diagnostic{Reason: "holds a private key, and whoever reads the log would read it; put it into a Secret"}
	}
	return &anypb.Any{TypeUrl: k.TypeURL, Value: b}, nil
}

// undecoded returns the payload of data that cannot be converted. On the log, its key
// keeps its last good value.
func undecoded(data []byte, mediaType string, why error) *anypb.Any {
	if validate.HasPrivateKey(data) {
		data = nil
	}
	u := &registryv1.Undecoded{Data: data, MediaType: mediaType, Error: valid(why.Error())}
	if e := (*problem.Diagnostic)(nil); errors.As(why, &e) {
		u.Field, u.Error = valid(e.Field), valid(e.Reason)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // cannot happen: all texts are valid UTF-8
		b = nil
	}
	return &anypb.Any{TypeUrl: ident.Undecoded, Value: b}
}

// content returns an object as JSON, without metadata that changes on its own. It
// returns nil for objects that may have keys and for converted ones.
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
