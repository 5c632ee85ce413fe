package validate

import (
	"crypto/sha256"
	"regexp"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/problem"
)

// secretType matches names, which are too short for a key.
var secretType = regexp.MustCompile(`^[-A-Za-z0-9._/]{0,100}$`)

// Secret refuses whatever could be key material: it is the last check before
// every reader of the log can see the value. It refuses too what Envoy must not get,
// so that the last good credential stays in service (SDS-7).
func Secret(m proto.Message) []problem.Diagnostic {
	const advice = "the log takes only references to Secrets: correct the program that wrote this, and replace the key"
	s := m.(*registryv1.SecretReference)
	c := checker{}
	data := &fieldPath{name: "data"}
	c.errorIf(!secretType.MatchString(s.GetType()), &fieldPath{name: "type"}, advice, "is not a type of a Secret")
	for field, sum := range s.GetFields() {
		switch {
		case !credential.IsField(field): // its name may be the key: do not quote it
			c.errorf(data, advice, "holds a field that no TLS credential has")
		case len(sum) != 0 && len(sum) != sha256.Size:
			c.errorf(data.entry(field), advice, "is not an HMAC-SHA256: it may be the content")
		}
	}
	c.errorIf(len(s.ProtoReflect().GetUnknown()) > 0, data, advice, "holds fields that this build does not know")
	c.problems = append(c.problems, credential.Judge(s).Problems...)
	return c.result()
}

// ConfigMap refuses a ConfigMap that holds a private key, or no certificates in its
// field for CA certificates.
func ConfigMap(m proto.Message) []problem.Diagnostic {
	c := checker{}
	o := m.(*registryv1.Object)
	c.errorIf(keymaterial.In(o.GetJson()) != "", &fieldPath{name: "data"}, "put it into a Secret, and replace the key", "holds a private key")
	found, _ := credential.ConfigMap(o)
	c.problems = append(c.problems, found.Problems...)
	return c.result()
}
