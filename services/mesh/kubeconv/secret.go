package kubeconv

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
)

// SecretFields is a field selector that excludes Secrets that Secret would drop, so
// that they never leave the API server. Secrets of Helm releases, service accounts
// and registries are many and large.
const SecretFields = "type!=helm.sh/release.v1,type!=" + string(corev1.SecretTypeServiceAccountToken) +
	",type!=" + string(corev1.SecretTypeDockercfg) + ",type!=" + string(corev1.SecretTypeDockerConfigJson) +
	",type!=" + string(corev1.SecretTypeBasicAuth) + ",type!=" + string(corev1.SecretTypeSSHAuth) +
	",type!=" + string(corev1.SecretTypeBootstrapToken)

// Secret converts a Secret that can be a TLS credential, a certificate with its key
// or a CA certificate, to a reference; it returns nil for other Secrets. The error
// says why a credential must not be on the log.
func Secret(s *corev1.Secret, o credential.Options) (*registryv1.SecretReference, error) {
	c, ok := Credential(s)
	if !ok {
		return nil, nil
	}
	return credential.Reference(c, o)
}

// Credential returns what Secret makes a reference to, with the data of s. It reports
// whether s can be a TLS credential.
func Credential(s *corev1.Secret) (credential.Source, bool) {
	if foreignSecret(s.Type) {
		return credential.Source{}, false
	}
	return credential.Source{Namespace: s.Namespace, Name: s.Name, Type: string(s.Type), Data: s.Data}, true
}

// foreignSecret reports whether a type is never a TLS credential, even if its Secrets
// may have a CA certificate.
func foreignSecret(t corev1.SecretType) bool {
	text := string(t)
	return t != corev1.SecretTypeTLS && (strings.HasPrefix(text, "kubernetes.io/") ||
		strings.HasPrefix(text, "bootstrap.kubernetes.io/") || strings.HasPrefix(text, "helm.sh/"))
}

// Wipe overwrites the content of a Secret in memory.
func Wipe(s *corev1.Secret) {
	for _, content := range s.Data {
		clear(content)
	}
	s.Data = nil
}
