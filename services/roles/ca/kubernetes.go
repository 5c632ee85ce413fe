package ca

import (
	"context"
	"errors"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/internal/process"
)

// reviewTime bounds the wait for the API server: the caller waits for 10 s at most.
const reviewTime = 5 * time.Second

// tokenReviews asks an API server about tokens, and nothing else.
type tokenReviews struct{ api rest.Interface }

// reviews returns the API server that the settings name. It sends no request.
func (s *Settings) reviews() (authn.TokenReviews, error) {
	c, err := s.apiServer()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := authenticationv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c.APIPath, c.GroupVersion = "/apis", &authenticationv1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.Timeout, c.QPS, c.Burst = reviewTime, -1, 0 // the CA's own limits protect the API server
	api, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return tokenReviews{api}, nil
}

func (s *Settings) apiServer() (*rest.Config, error) {
	if s.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, process.Invalid("kubeconfig", "is missing, and this process does not run in a pod: --kubernetes needs an API server; give the path of a kubeconfig file")
		}
		if err != nil {
			return nil, process.Invalid("kubeconfig", "is missing, and this pod has no credentials for its API server: %w", err)
		}
		return c, nil
	}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: s.KubeContext},
	).ClientConfig()
	if err != nil {
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return c, nil
}

// Create implements authn.TokenReviews.
func (t tokenReviews) Create(ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	answer := new(authenticationv1.TokenReview)
	err := t.api.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(answer)
	return answer, err
}
