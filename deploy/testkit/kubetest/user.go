package kubetest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// User creates or updates a user with exactly these rights in all namespaces and
// returns a configuration with the user's credentials. Earlier configurations of
// the same user stay valid and get the new rights. The rights are in effect when
// User returns.
func (s *Server) User(ctx context.Context, name string, rules ...rbacv1.PolicyRule) (*rest.Config, error) {
	// A role takes effect some time after it is written. This path names the rules:
	// once the user may get it, the API server applies them.
	encoded, err := json.Marshal(rules)
	if err != nil {
		return nil, err
	}
	marker := fmt.Sprintf("/kubetest/%x", sha256.Sum256(encoded))
	role := "kubetest:" + name
	err = s.applyTyped(ctx,
		&rbacv1.ClusterRole{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: role},
			Rules: append([]rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{marker}}}, rules...),
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		})
	if err != nil {
		return nil, err
	}
	err = until(ctx, "the rights of "+name, func(ctx context.Context) error { return s.mayGet(ctx, name, marker) })
	if err != nil {
		return nil, err
	}
	return s.user(name), nil
}

// mayGet returns nil if the API server lets a user get a path.
func (s *Server) mayGet(ctx context.Context, user, path string) error {
	review, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: path},
		},
	})
	if err != nil {
		return err
	}
	answer, err := s.objects.Resource(authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")).
		Create(ctx, &unstructured.Unstructured{Object: review}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !allowed {
		return fmt.Errorf("user %s may not get %s", user, path)
	}
	return nil
}

// user returns a configuration with a client certificate for a user in groups.
func (s *Server) user(name string, groups ...string) *rest.Config {
	p := s.ca.User(name, groups...)
	return &rest.Config{
		Host: s.url, UserAgent: "kubetest", QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.PEM(), CertData: p.Cert, KeyData: p.Key},
	}
}

// Kubeconfig encodes a configuration as a kubeconfig file that refers to no other
// file.
func Kubeconfig(c *rest.Config) ([]byte, error) {
	const name = "kubetest"
	f := clientcmdapi.NewConfig()
	f.Clusters[name] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	f.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	f.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	f.CurrentContext = name
	return clientcmd.Write(*f)
}
