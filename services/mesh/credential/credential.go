// Package credential makes references to TLS credentials, with what is public about
// them in clear, and judges credentials before Envoy gets them: Envoy accepts some
// that break the mesh without a word (SDS-7).
//
// It is pure. In particular it reads no clock: a Verdict has the times that matter,
// and its caller compares them with the present.
package credential

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/problem"
)

// MaxPublic is how many bytes of public parts a credential may have.
const MaxPublic = 256 << 10

// IsField reports whether a data field of a Secret can be part of a TLS credential:
// under the names that Kubernetes uses, and under those that Istio uses in Opaque
// Secrets.
func IsField(name string) bool { return slices.Contains(fields, name) }

var fields = []string{
	"tls.crt", "tls.key", "ca.crt", "ca.crl", "tls.ocsp-staple",
	"cert", "key", "cacert", "crl",
}

// names are the fields that a credential is made of; empty: it has no such part.
type names struct{ chain, key, ca, crl, staple string }

// namesOf chooses among the fields as Istio does: its own names come before those of
// Kubernetes, and a certificate counts only with a key of the same naming. A CRL
// counts under either name, because ignoring one would accept what it revokes.
func namesOf(has func(field string) bool) (n names) {
	first := func(fields ...string) string {
		if i := slices.IndexFunc(fields, has); i >= 0 {
			return fields[i]
		}
		return ""
	}
	switch {
	case has("cert") && has("key"):
		n.chain, n.key = "cert", "key"
	case has("tls.crt") && has("tls.key"):
		n.chain, n.key = "tls.crt", "tls.key"
	}
	switch n.ca = first("cacert", "ca.crt"); n.ca {
	case "cacert":
		n.crl = first("crl", "ca.crl")
	default:
		n.crl = first("ca.crl", "crl")
	}
	if n.chain != "" {
		n.staple = first("tls.ocsp-staple")
	}
	return n
}

// KeyField returns the field with the private key of a reference's pair; empty: it has
// no pair.
func KeyField(ref *registryv1.SecretReference) string {
	return namesOf(func(field string) bool { _, has := ref.GetFields()[field]; return has }).key
}

// HasCA reports whether a reference is to a credential with CA certificates, which the
// log may have or not.
func HasCA(ref *registryv1.SecretReference) bool {
	return namesOf(func(field string) bool { _, has := ref.GetFields()[field]; return has }).ca != ""
}

// Source is the content of a credential at its source, such as a Secret.
type Source struct {
	Namespace, Name string
	Type            string            // of the Secret; empty if it has none
	Data            map[string][]byte // only those that IsField names count, if they have content
}

// Options say what a reference reveals of its credential.
type Options struct {
	// Key is the key of the HMACs, the same for all watchers. If it is empty, a
	// reference has no HMACs, and a rotation of a private key is no change.
	Key []byte
	// Public puts the public parts into the reference, in clear.
	Public bool
}

// Reference returns the reference to a credential; it is nil if s holds none, neither
// a certificate with its key nor a CA certificate. The error, a *problem.Diagnostic,
// says why a credential must not be on the log; it never quotes the content.
func Reference(s Source, o Options) (*registryv1.SecretReference, error) {
	has := func(field string) bool { return len(s.Data[field]) > 0 }
	n := namesOf(has)
	if n.chain == "" && n.ca == "" {
		return nil, nil
	}
	ref := &registryv1.SecretReference{Type: s.Type, Fields: map[string][]byte{}}
	for _, field := range fields {
		if has(field) {
			ref.Fields[field] = Sum(s, field, o.Key)
		}
	}
	for _, field := range []string{n.chain, n.ca, n.crl, n.staple} {
		if form := keymaterial.In(s.Data[field]); form != "" {
			return nil, refused(field, "holds a private key "+form+", which every reader of the log and every client would see", "leave only what is public there")
		}
	}
	if o.Public {
		if err := reveal(ref, s, n); err != nil {
			return nil, err
		}
	}
	if n.chain != "" {
		ref.Pair = pairOf(s.Data[n.chain], s.Data[n.key])
	}
	return ref, nil
}

// reveal sets the public parts of ref.
func reveal(ref *registryv1.SecretReference, s Source, n names) (err error) {
	for _, part := range []struct {
		field, block string
		to           *string
	}{
		{n.chain, certificateBlock, &ref.CertificateChain}, {n.ca, certificateBlock, &ref.CaBundle}, {n.crl, crlBlock, &ref.Crl},
	} {
		if part.field == "" {
			continue
		}
		if *part.to, err = canonical(s.Data[part.field], part.block); err != nil {
			return refused(part.field, err.Error(), adviceBlocks(part.block))
		}
	}
	if n.staple != "" {
		if _, err := parseStaple(s.Data[n.staple]); err != nil {
			return refused(n.staple, err.Error(), adviceStaple)
		}
		ref.OcspStaple = slices.Clone(s.Data[n.staple])
	}
	if size := publicSize(ref); size > MaxPublic {
		return &problem.Diagnostic{
			Severity: problem.Error, Code: "invalid", Field: "data",
			Reason: fmt.Sprintf("has %d bytes of certificates, more than %d", size, MaxPublic), Advice: "leave only the CAs that are needed",
		}
	}
	return nil
}

func publicSize(ref *registryv1.SecretReference) int {
	return len(ref.GetCertificateChain()) + len(ref.GetCaBundle()) + len(ref.GetCrl()) + len(ref.GetOcspStaple())
}

// Sum returns the HMAC of a field, as references have it; nil without a key. It depends
// on the object: equal private keys of two Secrets do not look equal.
func Sum(s Source, field string, key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(s.Namespace + "/" + s.Name + "/" + field + "\x00"))
	h.Write(s.Data[field])
	return h.Sum(nil)
}

func adviceBlocks(block string) string { return "write it in PEM, as blocks " + block }

func refused(field, reason, advice string) *problem.Diagnostic {
	return &problem.Diagnostic{Severity: problem.Error, Code: "invalid", Field: fieldPath(field), Reason: reason, Advice: advice}
}

// fieldPath returns the path of a data field as users read it.
func fieldPath(field string) string { return fmt.Sprintf("data[%q]", field) }
