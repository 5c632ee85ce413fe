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

	// Payload is what the log is to carry, of kinds that are converted alone.
	// Its bytes are dropped after it has been reported.
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
