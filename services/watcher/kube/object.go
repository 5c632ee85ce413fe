package kube

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshlog.dev/events"
)

// key names an object of the cluster.
type key struct{ kind, namespace, name string }

// object is what is held of an object of the API server from its arrival on:
// never the object itself. Nobody writes to one that has left the feed.
type object struct {
	key
	version string    // the API server's own
	created time.Time // by its clock
	actor   string
	origin  string
	trace   string
	seen    time.Time // when it arrived

	// payload is what the log is to carry, of kinds that are converted alone.
	// Once it has been said its bytes are let go.
	payload events.Payload
	// body is what is kept of an object that is converted with others, or others
	// with it: a *kubeconv.Slice, a *kubeconv.Pod, the *registryv1.Locality of a
	// Node, the labels.Set of a Namespace; or a definition.
	body any
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: a Reflector asks each
// object for its key and version.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.namespace, Name: o.name, ResourceVersion: o.version}
}

// GetObjectKind implements runtime.Object.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object: nobody writes to an object.
func (o *object) DeepCopyObject() runtime.Object { return o }
