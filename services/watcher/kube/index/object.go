package index

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshlog.dev/proto/ident"
)

// Key names an object of the cluster.
type Key struct{ Kind, Namespace, Name string }

// Object is what is held of an object of the API server from its arrival on:
// never the object itself. Nobody writes to one that has left the feed.
type Object struct {
	Key
	Version string    // the API server's own
	Created time.Time // by its clock
	Actor   string
	Origin  string // where to look for it; empty: under its own name
	Trace   string
	Seen    time.Time // when it arrived

	// Payload is what the log is to carry, of kinds that are converted alone.
	// Once it has been said its bytes are let go.
	Payload ident.Value
	// Body is what is kept of an object that is converted with others, or others
	// with it: a *kubeconv.Slice, a *kubeconv.Pod, the *registryv1.Locality of a
	// Node, the labels.Set of a Namespace; or a definition.
	Body any
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: a Reflector asks each
// object for its key and version.
func (o *Object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.Version}
}

// GetObjectKind implements runtime.Object.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object: nobody writes to an object.
func (o *Object) DeepCopyObject() runtime.Object { return o }
