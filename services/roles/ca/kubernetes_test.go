package ca_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/services/mesh/spiffe"
)

// CA-5: with --kubernetes, and no right but to create tokenreviews, the CA takes the token
// of a pod, as a real API server makes it, and no token for another audience.
func TestKubernetesTokens(t *testing.T) {
	s, ctx := kubetest.Start(t), t.Context()
	core, err := coreclient.NewForConfig(s.Config())
	must(t, err)
	_, err = core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cart"}}, metav1.CreateOptions{})
	must(t, err)
	pod, err := core.Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cart-1"},
		Spec:       corev1.PodSpec{ServiceAccountName: "cart", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	token := func(audience string) string {
		r, err := core.ServiceAccounts("default").CreateToken(ctx, "cart", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
		must(t, err)
		return r.Status.Token
	}
	access, err := s.User(ctx, "meshlog-ca", rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}})
	must(t, err)
	kubeconfig, err := kubetest.Kubeconfig(access)
	must(t, err)

	m := start(t)
	must(t, cakv.EnsureStream(ctx, m.dial(bus.Builder()), 1), audit.EnsureStream(ctx, m.dial(bus.Builder()), audit.StreamOptions{}))
	m.settings.Kubernetes, m.settings.Kubeconfig = true, filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(m.settings.Kubeconfig, kubeconfig, 0o600), m.settings.Check(), m.settings.Verify())
	addr, _ := m.replica("ca-1")
	pool := m.ownRoot(addr)
	// The mesh must know the pod, and without a builder that cannot be told.
	if _, err := m.ask(addr, pool, token("istio-ca")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no builder can tell now") {
		t.Errorf("without a builder: %v", err)
	}
	asked := make(chan string, 2)
	known := make(chan bool, 2)
	leader := m.dial(bus.Builder())
	go func() {
		_ = bus.NewFleet(leader, "mesh", slog.New(slog.DiscardHandler)).ServePods(ctx, func(_ context.Context, namespace, name, account string) (bool, bool) {
			asked <- namespace + "/" + name + " " + account
			return <-known, true
		})
	}()
	for leader.NumSubscriptions() == 0 {
		must(t, ctx.Err())
	}
	must(t, leader.Flush())
	known <- false
	if _, err := m.ask(addr, pool, token("istio-ca")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is not in the mesh, or not yet") {
		t.Errorf("a pod that the mesh does not know: %v", err)
	}
	known <- true
	c, err := m.ask(addr, pool, token("istio-ca"))
	must(t, err)
	for range 2 {
		if pod := <-asked; pod != "default/cart-1 cart" {
			t.Errorf("the leader is asked about %s", pod)
		}
	}
	if id, err := spiffe.FromCertificate(c.Leaf); err != nil || id.String() != "spiffe://cluster.local/ns/default/sa/cart" {
		t.Errorf("the certificate is for %s, %v", id, err)
	}
	if _, err := m.ask(addr, pool, token("vault")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token for another audience: %v", err)
	}
	s.API.Kill()
	if _, err := m.ask(addr, pool, "e30.e30.e30"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "cannot review the token now") {
		t.Errorf("without the API server: %v", err)
	}
}
