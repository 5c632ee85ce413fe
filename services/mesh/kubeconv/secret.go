package kubeconv

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"
)

// SecretFields is a field selector that leaves out Secrets of which Secret
// makes nothing, so that they never leave the API server: those of releases,
// of service accounts and of registries are many and large.
const SecretFields = "type!=helm.sh/release.v1,type!=" + string(corev1.SecretTypeServiceAccountToken) +
	",type!=" + string(corev1.SecretTypeDockercfg) + ",type!=" + string(corev1.SecretTypeDockerConfigJson) +
	",type!=" + string(corev1.SecretTypeBasicAuth) + ",type!=" + string(corev1.SecretTypeSSHAuth) +
	",type!=" + string(corev1.SecretTypeBootstrapToken)

// Secret is a reference to a Secret that can be a TLS credential: a certificate
// with its key, or what others' certificates are checked with. Anything else is
// none. Of the content it holds HMACs under key, none if key is empty, so that
// a rotation is a change; never the content itself.
func Secret(s *corev1.Secret, key []byte) (ref *registryv1.SecretReference, is bool) {
	sums := sums(s, key)
	has := func(field string) bool { _, ok := sums[field]; return ok }
	credential := has("tls.crt") && has("tls.key") || has("cert") && has("key") || has("ca.crt") || has("cacert")
	if !credential || foreignSecret(s.Type) {
		return nil, false
	}
	return &registryv1.SecretReference{Type: string(s.Type), Fields: sums}, true
}

// foreignSecret knows the types that are no TLS credentials, even if some of
// them hold the certificate of an authority.
func foreignSecret(t corev1.SecretType) bool {
	text := string(t)
	return t != corev1.SecretTypeTLS && (strings.HasPrefix(text, "kubernetes.io/") ||
		strings.HasPrefix(text, "bootstrap.kubernetes.io/") || strings.HasPrefix(text, "helm.sh/"))
}

// sums are the HMACs of the fields that are there and have content.
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

// Wipe overwrites the content of a Secret, so that it is in memory no longer
// than it has to be.
func Wipe(s *corev1.Secret) {
	for _, content := range s.Data {
		clear(content)
	}
	s.Data = nil
}
