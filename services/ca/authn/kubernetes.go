package authn

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// audience is what a token of a service account must be made for. Istio's agents
// and injectors use it.
const audience = "istio-ca"

// Words of the API server.
const (
	accountPrefix = "system:serviceaccount:"
	accountGroup  = "system:serviceaccounts"
	extraPrefix   = "authentication.kubernetes.io/"
)

// TokenReviews is the API of a cluster, as client-go has it.
type TokenReviews interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// Pod is a pod that a token is bound to.
type Pod struct{ Namespace, Name, UID, ServiceAccount string }

// Knows reports whether the mesh knows a pod. An error: that cannot be told now.
type Knows func(context.Context, Pod) (bool, error)

// Kubernetes authenticates by tokens of service accounts that are bound to a pod,
// which the API server reviews: a token ends with its pod.
type Kubernetes struct {
	reviews     TokenReviews
	trustDomain string
	known       Knows
}

// NewKubernetes returns the authenticator. If known is not nil, it reports whether
// the mesh knows a pod; one that it does not know gets no certificate.
//
// Kubernetes takes every JSON web token, so in a Set it follows the authenticators
// that know their tokens by the issuer.
func NewKubernetes(trustDomain string, reviews TokenReviews, known Knows) *Kubernetes {
	return &Kubernetes{reviews, trustDomain, known}
}

// Name implements Authenticator.
func (*Kubernetes) Name() string { return "kubernetes" }

// Takes implements Authenticator.
func (*Kubernetes) Takes(c Credentials) bool { return isJWT(c.Token) }

// Authenticate implements Authenticator.
func (k *Kubernetes) Authenticate(ctx context.Context, c Credentials) (*Proof, error) {
	review, err := k.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: c.Token, Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, refuse(codes.Unavailable, err, "the Kubernetes API server cannot review the token now")
	}
	s := review.Status
	if !s.Authenticated {
		return nil, refuse(codes.Unauthenticated, errors.New(s.Error), "the Kubernetes API server does not accept the token for audience %s: it may have ended, be for another audience, or its pod may be gone", audience)
	}
	// An API server that knows no audiences leaves them out, and has not checked them.
	if !slices.Contains(s.Audiences, audience) {
		return nil, refuse(codes.Unauthenticated, nil, "the token is not for audience %s", audience)
	}
	name, isAccount := strings.CutPrefix(s.User.Username, accountPrefix)
	namespace, account, whole := strings.Cut(name, ":")
	if !isAccount || !whole || !slices.Contains(s.User.Groups, accountGroup) {
		return nil, refuse(codes.PermissionDenied, nil, "the token is not one of a service account")
	}
	extra := func(name string) string {
		if v := s.User.Extra[extraPrefix+name]; len(v) == 1 {
			return v[0]
		}
		return ""
	}
	pod := Pod{namespace, extra("pod-name"), extra("pod-uid"), account}
	if pod.Name == "" || pod.UID == "" {
		return nil, refuse(codes.PermissionDenied, nil, "the token is not bound to a pod: use a projected volume, as injected pods have it")
	}
	known := k.known == nil
	if !known {
		if known, err = k.known(ctx, pod); err != nil {
			return nil, refuse(codes.Unavailable, err, "no builder can tell now whether the mesh knows pod %s/%s: try again", pod.Namespace, pod.Name)
		}
	}
	if !known {
		// A pod asks as soon as it runs, and its watcher may not have published it yet.
		return nil, refuse(codes.Unavailable, nil, "pod %s/%s (%s) is not in the mesh, or not yet: try again once its watcher has published it", pod.Namespace, pod.Name, pod.UID)
	}
	id, err := identity(k.trustDomain, namespace, account)
	if err != nil {
		return nil, err
	}
	facts := map[string]string{"pod": pod.Name, "pod-uid": pod.UID}
	if node := extra("node-name"); node != "" {
		facts["node"] = node
	}
	return &Proof{ID: id, Facts: facts}, nil
}
