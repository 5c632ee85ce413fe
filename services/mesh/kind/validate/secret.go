package validate

import (
	"bytes"
	"crypto/sha256"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// CredentialFields are the data of a Secret that a TLS credential is made of:
// as Kubernetes calls them, and as Istio does in Opaque ones.
func CredentialFields() []string { return slices.Clone(credentialFields) }

var credentialFields = []string{
	"tls.crt", "tls.key", "ca.crt", "ca.crl", "tls.ocsp-staple",
	"cert", "key", "cacert", "crl",
}

// secretType is a name, and too short for a key.
var secretType = regexp.MustCompile(`^[-A-Za-z0-9._/]{0,100}$`)

// validateSecret refuses whatever could be key material: it is the last one to
// look before the log is read by everybody.
func Secret(m proto.Message) []problem.Problem {
	s := m.(*registryv1.SecretReference)
	c := checker{}
	if !secretType.MatchString(s.GetType()) {
		c.at(&fieldPath{name: "type"}, keyAdvice, "is no type of a Secret")
	}
	data := &fieldPath{name: "data"}
	for field, sum := range s.GetFields() {
		switch {
		case !slices.Contains(credentialFields, field):
			c.at(data, keyAdvice, "holds what is no field of a TLS credential")
		case len(sum) != 0 && len(sum) != sha256.Size:
			c.at(data.entry(field), keyAdvice, "is no HMAC-SHA256: it may be the content")
		}
	}
	if len(s.ProtoReflect().GetUnknown()) > 0 {
		c.at(data, keyAdvice, "holds fields that this build does not know")
	}
	return c.result()
}

const keyAdvice = "the log takes references to Secrets alone: see who writes this, and replace the key"

func ConfigMap(m proto.Message) []problem.Problem {
	c := checker{}
	if HasPrivateKey(m.(*registryv1.Object).GetJson()) {
		c.at(&fieldPath{name: "data"}, "put it into a Secret, and replace the key", "holds a private key")
	}
	return c.result()
}

// HasPrivateKey knows a payload or a text that holds a private key in PEM.
func HasPrivateKey(b []byte) bool { return bytes.Contains(b, []byte("PRIVATE KEY-----")) }
