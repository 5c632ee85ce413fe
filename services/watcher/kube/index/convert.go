package index

import (
	"unique"

	"google.golang.org/protobuf/types/known/anypb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/kubeconv"
)

// Converter makes of an object of the API server what is held of it. One that is
// not ok is as if it were not there; its key is set all the same.
type Converter func(runtime.Object) (o *Object, ok bool)

// Objects converts objects of a kind. Those that others are converted with
// are kept: EndpointSlices and Pods are left to the index, which
// knows the others.
func Objects(k *kind.Kind, c kubeconv.Converter, keep *kubeconv.Keeper) Converter {
	return func(from runtime.Object) (*Object, bool) {
		m, err := meta.Accessor(from)
		if err != nil { // a client's objects have metadata
			return &Object{Key: Key{Kind: k.Name}}, false
		}
		o := described(Key{k.Name, m.GetNamespace(), m.GetName()}, m)
		switch from := from.(type) {
		case *discoveryv1.EndpointSlice:
			o.Body = keep.Slice(from)
			return o, true
		case *corev1.Pod:
			o.Body = keep.Pod(from)
			return o, true
		case *corev1.Node:
			o.Body = kubeconv.Locality(from.Labels)
		case *corev1.Namespace:
			o.Body = labels.Set(from.Labels)
		case *corev1.Service:
			if kubeconv.OwnEndpoints(from) {
				o.Body = ownEndpoints{}
			}
		case *corev1.Secret:
			defer kubeconv.Wipe(from)
		}
		var ok bool
		o.Payload, ok = payloadOf(c.Payload(k, m))
		return o, ok
	}
}

// Settings converts the ConfigMap that holds the settings of a mesh to those
// of a kind.
func Settings(k *kind.Kind) Converter {
	return func(from runtime.Object) (*Object, bool) {
		c, ok := from.(*corev1.ConfigMap)
		if !ok {
			return &Object{Key: Key{Kind: k.Name, Name: k.Only}}, false
		}
		for _, d := range kubeconv.Mesh(c) {
			if d.Kind == k.Name {
				o := described(Key{Kind: d.Kind, Name: d.Name}, c)
				o.Payload, _ = payloadOf(d.Payload)
				o.Origin = d.Origin
				return o, true
			}
		}
		return &Object{Key: Key{Kind: k.Name, Name: k.Only}}, false
	}
}

// payloadOf is what the log is to carry; not ok: nothing.
func payloadOf(a *anypb.Any) (p ident.Value, ok bool) {
	return ident.Value{Type: a.GetTypeUrl(), Bytes: a.GetValue()}, a != nil
}

// described is an object with what its metadata says.
func described(k Key, m metav1.Object) *Object {
	return &Object{
		Key: k, Version: m.GetResourceVersion(), Created: m.GetCreationTimestamp().UTC(),
		// The same few are on all objects.
		Actor: unique.Make(kubeconv.Manager(m.GetManagedFields())).Value(),
		Trace: m.GetAnnotations()[validate.TraceAnnotation],
	}
}
