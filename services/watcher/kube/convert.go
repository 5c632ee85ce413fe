package kube

import (
	"unique"

	"google.golang.org/protobuf/types/known/anypb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/kubeconv"
)

// converter makes of an object of the API server what is held of it. One that is
// not ok is as if it were not there; its key is set all the same.
type converter func(runtime.Object) (o *object, ok bool)

// objectsOf converts objects of a kind. Those that others are converted with
// are kept: EndpointSlices and Pods are left to the index, which
// knows the others.
func objectsOf(k *kind.Kind, c kubeconv.Converter, keep *kubeconv.Keeper) converter {
	return func(from runtime.Object) (*object, bool) {
		m, err := meta.Accessor(from)
		if err != nil { // a client's objects have metadata
			return &object{key: key{kind: k.Name}}, false
		}
		o := described(key{k.Name, m.GetNamespace(), m.GetName()}, m)
		switch from := from.(type) {
		case *discoveryv1.EndpointSlice:
			o.body = keep.Slice(from)
			return o, true
		case *corev1.Pod:
			o.body = keep.Pod(from)
			return o, true
		case *corev1.Node:
			o.body = kubeconv.Locality(from.Labels)
		case *corev1.Namespace:
			o.body = labels.Set(from.Labels)
		case *corev1.Service:
			if kubeconv.OwnEndpoints(from) {
				o.body = ownEndpoints{}
			}
		case *corev1.Secret:
			defer kubeconv.Wipe(from)
		}
		var ok bool
		o.payload, ok = payloadOf(c.Payload(k, m))
		return o, ok
	}
}

// settingsOf converts the ConfigMap that holds the settings of a mesh to those
// of a kind.
func settingsOf(k *kind.Kind) converter {
	return func(from runtime.Object) (*object, bool) {
		c, ok := from.(*corev1.ConfigMap)
		if !ok {
			return &object{key: key{kind: k.Name, name: k.Only}}, false
		}
		for _, d := range kubeconv.Mesh(c) {
			if d.Kind == k.Name {
				o := described(key{kind: d.Kind, name: d.Name}, c)
				o.payload, _ = payloadOf(d.Payload)
				o.origin = d.Origin
				return o, true
			}
		}
		return &object{key: key{kind: k.Name, name: k.Only}}, false
	}
}

// payloadOf is what the log is to carry; not ok: nothing.
func payloadOf(a *anypb.Any) (p events.Payload, ok bool) {
	return events.Payload{Type: a.GetTypeUrl(), Bytes: a.GetValue()}, a != nil
}

// described is an object with what its metadata says.
func described(k key, m metav1.Object) *object {
	return &object{
		key: k, version: m.GetResourceVersion(), created: m.GetCreationTimestamp().UTC(),
		// The same few are on all objects.
		actor: unique.Make(kubeconv.Manager(m.GetManagedFields())).Value(),
		trace: m.GetAnnotations()[kind.TraceAnnotation],
	}
}

// definition is what a CustomResourceDefinition says of itself.
type definition struct {
	uid      string
	deleting bool
}

// definitionsOf converts the metadata of CustomResourceDefinitions.
func definitionsOf(from runtime.Object) (*object, bool) {
	m, err := meta.Accessor(from)
	if err != nil {
		return &object{}, false
	}
	o := &object{key: key{name: m.GetName()}, version: m.GetResourceVersion()}
	o.body = definition{uid: string(m.GetUID()), deleting: m.GetDeletionTimestamp() != nil}
	return o, true
}
