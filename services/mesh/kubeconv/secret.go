package kubeconv

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"
)

// SecretFields is a field selector that excludes Secrets that Secret would drop, so
// that they never leave the API server. Secrets of Helm releases, service accounts
// and registries are many and large.
const SecretFields = "type!=helm.sh/release.v1,type!=" + string(corev1.SecretTypeServiceAccountToken) +
	",type!=" + string(corev1.SecretTypeDockercfg) + ",type!=" + string(corev1.SecretTypeDockerConfigJson) +
	",type!=" + string(corev1.SecretTypeBasicAuth) + ",type!=" + string(corev1.SecretTypeSSHAuth) +
	",type!=" + string(corev1.SecretTypeBootstrapToken)

// Secret converts a Secret that can be a TLS credential, a certificate with its key
// or a CA certificate, to a reference; is is false for other Secrets. The reference
// has HMACs of the content under key, so that a rotation is a change, but never the
// content. If key is empty, it has no HMACs.
func Secret(s *corev1.Secret, key []byte) (ref *registryv1.SecretReference, is bool) {
	sums := sums(s, key)
	has := func(field string) bool { _, ok := sums[field]; return ok }
	credential := has("tls.crt") && has("tls.key") || has("cert") && has("key") || has("ca.crt") || has("cacert")
	if !credential || foreignSecret(s.Type) {
		return nil, false
	}
	return &registryv1.SecretReference{Type: string(s.Type), Fields: sums}, true
}

// foreignSecret reports whether a type is never a TLS credential, even if its Secrets
// may have a CA certificate.
func foreignSecret(t corev1.SecretType) bool {
	text := string(t)
	return t != corev1.SecretTypeTLS && (strings.HasPrefix(text, "kubernetes.io/") ||
		strings.HasPrefix(text, "bootstrap.kubernetes.io/") || strings.HasPrefix(text, "helm.sh/"))
}

// sums returns the HMACs of the fields that are not empty.
func sums(s *corev1.Secret, key []byte) map[string][]byte {
	out := map[string][]byte{}
	for _, field := range validate.CredentialFields() {
		if content := s.Data[field]; len(content) > 0 {
			out[field] = sum256(s, field, content, key)
		}
	}
	return out
}

func sum256(s *corev1.Secret, field string, content, key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(s.Namespace + "/" + s.Name + "/" + field + "\x00"))
	h.Write(content)
	return h.Sum(nil)
}

// Wipe overwrites the content of a Secret in memory.
func Wipe(s *corev1.Secret) {
	for _, content := range s.Data {
		clear(content)
	}
	s.Data = nil
}
