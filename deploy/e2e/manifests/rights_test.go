package manifests

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
)

// TestRights asks a real API server for the rights of the account of watcher-kube
// when only some namespaces are watched, and with the components that add rights.
// services/cmd/watcher-kube tests the rights for a whole cluster, and that they
// suffice.
func TestRights(t *testing.T) {
	render := kustomize(t)
	s := kubetest.Start(t)
	objects, err := dynamic.NewForConfig(s.Config())
	must(t, err)
	may := func(ctx context.Context, r right) (bool, error) {
		review, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&authorizationv1.SubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:meshlog:watcher-kube", Groups: []string{"system:serviceaccounts", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.verb, Resource: r.resource, Namespace: r.namespace, Name: r.name},
			},
		})
		if err != nil {
			return false, err
		}
		answer, err := objects.Resource(authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")).
			Create(ctx, &unstructured.Unstructured{Object: review}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		allowed, _, err := unstructured.NestedBool(answer.Object, "status", "allowed")
		return allowed, err
	}
	must(t, s.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}"))
	for _, step := range []struct {
		dir      string
		yes, not []right
	}{
		{filepath.Join(tree(t), "namespaces"), []right{
			{"list", "nodes", "", ""}, {"watch", "configmaps", "meshlog", "istio"},
		}, []right{
			{"list", "services", "default", ""}, {"list", "services", "", ""}, {"get", "endpoints", "default", "x"}, {"list", "configmaps", "meshlog", ""},
		}},
		{filepath.Join(tree(t), "watched"), []right{ // in the namespace default
			{"list", "services", "default", ""}, {"watch", "pods", "default", ""}, {"get", "endpoints", "default", "x"},
		}, []right{
			{"list", "services", "", ""}, {"list", "services", "kube-system", ""}, {"list", "secrets", "default", ""}, {"update", "services", "default", "x"},
		}},
		{own(t, []string{"namespaces"}, []string{"components/remote-clusters", "components/istio-settings"}), []right{
			{"list", "secrets", "meshlog-clusters", ""}, {"list", "configmaps", "istio-system", "istio"},
		}, []right{
			{"list", "secrets", "meshlog", ""}, {"get", "secrets", "meshlog", "builder-bus"}, {"list", "secrets", "", ""}, {"list", "configmaps", "istio-system", ""},
		}},
	} {
		must(t, s.Apply(t.Context(), render(step.dir)))
		for _, r := range step.yes {
			must(t, program.Until(t.Context(), r.String(), func(ctx context.Context) error {
				if ok, err := may(ctx, r); err != nil || ok {
					return err
				}
				return fmt.Errorf("the account lacks this right")
			}))
		}
		for _, r := range step.not {
			if ok, err := may(t.Context(), r); err != nil || ok {
				t.Errorf("%s: the account has this right (%v)", r, err)
			}
		}
	}
}

// right is the right to use a verb on a resource of Kubernetes itself. Without a
// namespace it is for all namespaces, without a name for all names.
type right struct{ verb, resource, namespace, name string }

func (r right) String() string {
	return fmt.Sprintf("%s %s %s in %q", r.verb, r.resource, r.name, r.namespace)
}
