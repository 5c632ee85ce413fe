package kubetest

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// may returns the right to read resources.
func may(resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
}

func testUser(t *testing.T, s *Server) {
	c, err := s.User(t.Context(), "watcher", may("services", "pods"))
	must(t, err)
	d := client(t, c)
	list := func() (services_, pods_ error) {
		_, services_ = d.Resource(services).List(t.Context(), metav1.ListOptions{})
		_, pods_ = d.Resource(pods).List(t.Context(), metav1.ListOptions{})
		return services_, pods_
	}
	if a, b := list(); a != nil || b != nil {
		t.Errorf("services: %v, pods: %v", a, b)
	}
	if _, err := d.Resource(namespaces).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("namespaces: %v, want forbidden", err)
	}

	// Changed rights apply immediately to the existing credentials.
	_, err = s.User(t.Context(), "watcher", may("services"))
	must(t, err)
	if a, b := list(); a != nil || !apierrors.IsForbidden(b) {
		t.Errorf("services: %v, pods: %v, want forbidden", a, b)
	}
	_, err = s.User(t.Context(), "watcher", may("services", "pods"))
	must(t, err)
	if a, b := list(); a != nil || b != nil {
		t.Errorf("services: %v, pods: %v", a, b)
	}
}

func testKubeconfig(t *testing.T, s *Server) {
	b, err := Kubeconfig(s.Config())
	must(t, err)
	c, err := clientcmd.RESTConfigFromKubeConfig(b)
	must(t, err)
	_, err = client(t, c).Resource(namespaces).Get(t.Context(), "default", metav1.GetOptions{})
	must(t, err)
}
