package authn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"google.golang.org/grpc/codes"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/ca/authn"
)

// cluster is a real API server with an account, and makes its tokens.
type cluster struct {
	t       *testing.T
	core    *coreclient.CoreV1Client
	reviews authenticationclient.TokenReviewInterface
	pod     *corev1.Pod
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	s := kubetest.Start(t)
	c := &cluster{t: t}
	var err error
	if c.core, err = coreclient.NewForConfig(s.Config()); err != nil {
		t.Fatal(err)
	}
	auth, err := authenticationclient.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	c.reviews = auth.TokenReviews()
	if _, err := c.core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cart", "other"} {
		if _, err := c.core.ServiceAccounts("shop").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.pod = c.newPod()
	return c
}

func (c *cluster) newPod() *corev1.Pod {
	c.t.Helper()
	pod, err := c.core.Pods("shop").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cart-1"},
		Spec:       corev1.PodSpec{ServiceAccountName: "cart", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// token makes a token of account cart; pod is nil for one that is bound to none.
func (c *cluster) token(audience string, pod *corev1.Pod) string {
	c.t.Helper()
	spec := authenticationv1.TokenRequestSpec{Audiences: []string{audience}}
	if pod != nil {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	r, err := c.core.ServiceAccounts("shop").CreateToken(c.t.Context(), "cart", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return r.Status.Token
}

// CA-5: tokens of a real API server.
func TestKubernetes(t *testing.T) {
	c := startCluster(t)
	known, knownErr := true, error(nil)
	k := authn.NewKubernetes(domain, c.reviews, func(_ context.Context, p authn.Pod) (bool, error) {
		if want := (authn.Pod{Namespace: "shop", Name: "cart-1", UID: string(c.pod.UID), ServiceAccount: "cart"}); p != want {
			t.Errorf("asked about pod %+v, want %+v", p, want)
		}
		return known, knownErr
	})
	token := c.token("istio-ca", c.pod)
	p, err := authenticate(t, k, token)
	if err != nil || p.ID != cart || p.Authenticator != "kubernetes" || p.Facts["pod"] != "cart-1" || p.Facts["pod-uid"] != string(c.pod.UID) {
		t.Fatalf("%+v, %v", p, err)
	}
	t.Run("wrong audience", func(t *testing.T) {
		for _, audience := range []string{"https://kubernetes.default.svc", "vault", "istio-ca-2"} {
			token := c.token(audience, c.pod)
			p, err := authenticate(t, k, token)
			expectRefusal(t, p, err, codes.Unauthenticated, "does not accept the token for audience istio-ca", token)
		}
	})
	t.Run("no pod", func(t *testing.T) {
		token := c.token("istio-ca", nil)
		p, err := authenticate(t, k, token)
		expectRefusal(t, p, err, codes.PermissionDenied, "is not bound to a pod", token)
	})
	t.Run("pod not in the mesh", func(t *testing.T) {
		known = false
		p, err := authenticate(t, k, token)
		expectRefusal(t, p, err, codes.Unavailable, "is not in the mesh, or not yet", token)
		known, knownErr = true, errors.New("no leader answered")
		p, err = authenticate(t, k, token)
		expectRefusal(t, p, err, codes.Unavailable, "no builder can tell now", token)
		knownErr = nil
	})
	t.Run("forged", func(t *testing.T) {
		parts := strings.Split(token, ".")
		forged := parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2]))
		p, err := authenticate(t, k, forged)
		expectRefusal(t, p, err, codes.Unauthenticated, "does not accept the token", forged)
	})
	// The API server remembers reviews for 10 s at most.
	t.Run("replayed after its pod is dead", func(t *testing.T) {
		now := int64(0)
		if err := c.core.Pods("shop").Delete(t.Context(), "cart-1", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		p, err := authenticate(t, k, token)
		for err == nil {
			select {
			case <-ctx.Done():
				t.Fatal("the token of a dead pod is still good")
			case <-tick.C:
			}
			p, err = authenticate(t, k, token)
		}
		expectRefusal(t, p, err, codes.Unauthenticated, "its pod may be gone", token)
		// A new pod of the same name does not revive it.
		c.pod = c.newPod()
		p, err = authenticate(t, k, token)
		expectRefusal(t, p, err, codes.Unauthenticated, "its pod may be gone", token)
	})
}

// answers reviews as an API server might.
type answers func(*authenticationv1.TokenReviewStatus) error

func (f answers) Create(_ context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{"istio-ca"},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:shop:cart", Groups: []string{"system:serviceaccounts"},
			Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/pod-name": {"cart-1"}, "authentication.kubernetes.io/pod-uid": {"u"},
			},
		},
	}
	return r, f(&r.Status)
}

// CA-5: what API servers may answer.
func TestTokenReviews(t *testing.T) {
	for want, c := range map[string]struct {
		change answers
		code   codes.Code
	}{
		"":                    {func(*authenticationv1.TokenReviewStatus) error { return nil }, codes.OK},
		"cannot review":       {func(*authenticationv1.TokenReviewStatus) error { return errors.New("away") }, codes.Unavailable},
		"does not accept":     {func(s *authenticationv1.TokenReviewStatus) error { s.Authenticated = false; return nil }, codes.Unauthenticated},
		"is not for audience": {func(s *authenticationv1.TokenReviewStatus) error { s.Audiences = nil; return nil }, codes.Unauthenticated}, // it knows none
		"not one of a service account": {func(s *authenticationv1.TokenReviewStatus) error {
			s.User.Username = "admin"
			return nil
		}, codes.PermissionDenied},
		"not one of a service": {func(s *authenticationv1.TokenReviewStatus) error { s.User.Groups = nil; return nil }, codes.PermissionDenied}, // a user of that name
		"name no workload": {func(s *authenticationv1.TokenReviewStatus) error {
			s.User.Username = "system:serviceaccount:shop:cart/x"
			return nil
		}, codes.PermissionDenied},
		"not bound to a pod": {func(s *authenticationv1.TokenReviewStatus) error {
			s.User.Extra["authentication.kubernetes.io/pod-uid"] = nil
			return nil
		}, codes.PermissionDenied},
	} {
		p, err := authenticate(t, authn.NewKubernetes(domain, c.change, nil), "a.b.c")
		if c.code != codes.OK {
			expectRefusal(t, p, err, c.code, want, "a.b.c")
		} else if err != nil || p.ID != cart {
			t.Errorf("%+v, %v", p, err)
		}
	}
}
