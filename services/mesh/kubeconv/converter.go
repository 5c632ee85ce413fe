package kubeconv

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// Converter converts the objects of one cluster. It is safe for concurrent use if its
// Lookup is.
type Converter struct {
	// DomainSuffix is the domain of the cluster's Services; empty means the
	// MeshPolicy's.
	DomainSuffix string
	// Revision is that of the control plane: objects of others are not published
	// (kind.InRevision). Empty: all are.
	Revision string
	// Secrets say what references to Secrets reveal.
	Secrets credential.Options
	// Lookup finds the objects that endpoints refer to. It may be nil.
	Lookup Lookup
}

// Payload returns the content to publish for an object of a kind: a *corev1.Service,
// Node, Namespace, Secret or ConfigMap, a *Pod or *Slice, or an
// *unstructured.Unstructured of any other kind. An object that cannot be converted
// becomes an Undecoded. Equal content has equal payloads.
//
// ok is false for an object that is not published: a Pod without an address or that
// has ended (POD-3), or a Secret that is not a TLS credential, or an object of another revision.
func (c *Converter) Payload(k *kind.Kind, object any) (p ident.Value, ok bool) {
	if u, is := object.(*unstructured.Unstructured); is && !k.InRevision(c.Revision, u.GetLabels()) {
		return p, false
	}
	m, err := c.convert(k, object)
	if m == nil && err == nil {
		return p, false
	}
	if err == nil {
		p, err = Encode(k, m)
	}
	if err != nil {
		p = undecoded(content(object), "application/json", err)
	}
	return p, true
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
		if m, err := Secret(o, c.Secrets); m != nil || err != nil {
			return m, err
		}
		return nil, nil
	case *corev1.ConfigMap:
		return ConfigMap(o), nil
	case *unstructured.Unstructured:
		return FromUnstructured(k, o.Object)
	}
	return nil, fmt.Errorf("a %T is not converted", object)
}

// Encode returns the payload of m, or an error if m has a private key, which must not
// be on the log.
func Encode(k *kind.Kind, m proto.Message) (ident.Value, error) {
	b, err := k.Encode(m)
	switch {
	case err != nil: // a text is not UTF-8
		return ident.Value{}, err
	case keymaterial.In(b) != "":
		return ident.Value{}, &problem.Diagnostic{Reason: "holds a private key, and every reader of the log would see it; put it into a Secret"}
	}
	return ident.Value{Type: k.TypeOf(m), Bytes: b}, nil
}

func undecoded(data []byte, mediaType string, why error) ident.Value {
	bad := &problem.Diagnostic{Reason: why.Error()}
	errors.As(why, &bad) // if it is a Diagnostic
	return kind.Undecoded(data, mediaType, bad)
}

// content returns an object of a custom kind as JSON, without metadata that changes
// on its own. It returns nil for other objects, which may hold keys.
func content(object any) []byte {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	m, err := whole(u.Object)
	if err != nil {
		return nil
	}
	return m.(*registryv1.Object).GetJson()
}
