package kubetest

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const virtualService = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart}
spec:
  hosts: [cart]
  http: [{route: [{destination: {host: cart}}]}]
`

func testCRDs(t *testing.T, s *Server) {
	d := client(t, s.Config())
	must(t, s.InstallIstioCRDs(t.Context(), "virtualservices.networking.istio.io"))
	must(t, s.Apply(t.Context(), virtualService))
	get(t, d, vs, "default", "cart")

	must(t, s.InstallIstioCRDs(t.Context()))
	must(t, s.InstallGatewayCRDs(t.Context()))
	must(t, s.Apply(t.Context(), `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart}
spec:
  rules: [{backendRefs: [{name: cart, port: 80}]}]
`))
	get(t, d, routes, "default", "cart")

	// Removing the definition removes its objects; a new one starts empty.
	must(t, s.RemoveCRD(t.Context(), "virtualservices.networking.istio.io"))
	if _, err := d.Resource(vs).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list of a removed kind: %v", err)
	}
	must(t, s.InstallIstioCRDs(t.Context(), "virtualservices.networking.istio.io"))
	l, err := d.Resource(vs).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(l.Items) != 0 {
		t.Errorf("%d objects outlived their definition", len(l.Items))
	}
	if err := s.InstallIstioCRDs(t.Context(), "nonsense.istio.io"); err == nil {
		t.Error("installing an unknown definition succeeds")
	}
}
