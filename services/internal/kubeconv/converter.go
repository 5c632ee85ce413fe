package kubeconv

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"meshlog.dev/events"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/kind"
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
// ok is false for what is not to be on the log, as it is or any more: a Pod
// that has no address or has ended (POD-3), a Secret that is no TLS credential.
func (c *Converter) Payload(k *kind.Kind, object any) (p events.Payload, ok bool) {
	m, err := c.convert(k, object)
	switch {
	case err != nil:
		return undecoded(object, err), true
	case m == nil:
		return events.Payload{}, false
	}
	b, err := k.Encode(m)
	if err != nil { // a text that is no UTF-8
		return undecoded(object, err), true
	}
	return events.Payload{Type: k.TypeURL, Bytes: b}, true
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

// undecoded offers an object as it is, for it to keep its last good value. What
// is no content is left out, so that only a change of content is one; what may
// be key material is left out too.
func undecoded(object any, why error) events.Payload {
	u := &registryv1.Undecoded{MediaType: "application/json"}
	var e *Error
	if errors.As(why, &e) {
		u.Field, u.Error = valid(e.Field), valid(e.Reason)
	} else {
		u.Error = valid(why.Error())
	}
	switch o := object.(type) {
	case *corev1.Secret, *corev1.ConfigMap, *Pod, *Slice:
	case *unstructured.Unstructured:
		u.Data = content(o.Object)
	default:
		u.Data = content(object)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // texts and bytes: it cannot be
		b = nil
	}
	return events.Payload{Type: kind.Undecoded, Bytes: b}
}

// content is an object as JSON without what is no content; nil if it has none.
func content(object any) []byte {
	b, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	m, err := kind.FromObject(b)
	if err != nil {
		return nil
	}
	return m.(*registryv1.Object).GetJson()
}
