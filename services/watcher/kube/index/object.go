package index

import (
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/kubeconv"
)

// Key names an object of the cluster.
type Key struct{ Kind, Namespace, Name string }

// Object has the converted parts of an object of the API server. It is immutable
// after it has left the feed.
type Object struct {
	Key
	Version string    // resource version
	Created time.Time // by the API server's clock
	Actor   string
	Origin  string // where users find it; empty if under its own name
	Trace   string
	Seen    time.Time // when it arrived

	// Payload is published, for kinds that are converted alone. Its bytes are
	// dropped after it has been reported.
	Payload ident.Value
	// Body has the data of an object that is converted together with others: a
	// *kubeconv.Slice, a *kubeconv.Pod, the *registryv1.Locality of a Node, the
	// labels.Set of a Namespace; or a definition.
	Body any
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, which the Reflector uses for
// the key and the version.
func (o *Object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.Version}
}

// GetObjectKind implements runtime.Object.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Objects are immutable.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// Converter converts an object of the API server. If ok is false, the object is
// ignored, but its key is set.
type Converter func(runtime.Object) (o *Object, ok bool)

// Objects returns the converter for objects of a kind. EndpointSlices and Pods get
// only a Body: the index converts them with the objects that they refer to.
func Objects(k *kind.Kind, c kubeconv.Converter, keep *kubeconv.Keeper) Converter {
	return func(from runtime.Object) (*Object, bool) {
		m := from.(metav1.Object)
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
		o.Payload, ok = c.Payload(k, m)
		return o, ok
	}
}

// Settings returns the converter of the mesh's ConfigMap to the settings of a kind.
func Settings(k *kind.Kind) Converter {
	return func(from runtime.Object) (*Object, bool) {
		c := from.(*corev1.ConfigMap)
		o := described(Key{Kind: k.Name, Name: k.Only}, c)
		var ok bool
		o.Payload, o.Origin, ok = kubeconv.Mesh(k, c)
		return o, ok
	}
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
