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

// Converter converts an object of the API server. If ok is false, the object is
// ignored, but its key is set.
type Converter func(runtime.Object) (o *Object, ok bool)

// Objects returns the converter for objects of a kind. EndpointSlices and Pods get
// only a Body: the index converts them with the objects that they refer to.
func Objects(k *kind.Kind, c kubeconv.Converter, keep *kubeconv.Keeper) Converter {
	return func(from runtime.Object) (*Object, bool) {
		m, err := meta.Accessor(from)
		if err != nil { // cannot happen: a client's objects have metadata
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

// Settings returns the converter of the mesh's ConfigMap to the settings of a kind.
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

func payloadOf(a *anypb.Any) (p ident.Value, ok bool) {
	return ident.Value{Type: a.GetTypeUrl(), Bytes: a.GetValue()}, a != nil
}

// described returns an object with the data of its metadata.
func described(k Key, m metav1.Object) *Object {
	return &Object{
		Key: k, Version: m.GetResourceVersion(), Created: m.GetCreationTimestamp().UTC(),
		// Few managers write all objects, so the strings are shared.
		Actor: unique.Make(kubeconv.Manager(m.GetManagedFields())).Value(),
		Trace: m.GetAnnotations()[validate.TraceAnnotation],
	}
}
