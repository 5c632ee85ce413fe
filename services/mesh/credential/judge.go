package credential

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ocsp"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// Verdict is what is usable of a credential, and what is wrong with it.
type Verdict struct {
	// Pair reports that certificate and key can be served. The certificates are in
	// Chain if the reference has them, the server's own first.
	Pair   bool
	Chain  []*x509.Certificate
	Staple *ocsp.Response // about the first of Chain; nil: none is usable
	// CAs and their CRLs. Without CAs no validation context may be made: an empty one
	// accepts every client, with and without a certificate (S16).
	CAs  []*x509.Certificate
	CRLs []*x509.RevocationList
	// Windows say when each part is valid. An ended or a future pair is served if
	// there is nothing better (S15). An ended CRL refuses all clients (S17).
	Windows []Window
	// Problems are independent of the time. If one is an error, the whole credential
	// is invalid, and its last good value is the better one.
	Problems []problem.Diagnostic
}

// Bundle returns the CAs and their CRLs in PEM, as a reference has them.
func (v Verdict) Bundle() (cas, crls string) {
	var a, b strings.Builder
	for _, c := range v.CAs {
		a.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: c.Raw}))
	}
	for _, l := range v.CRLs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: crlBlock, Bytes: l.Raw}))
	}
	return a.String(), b.String()
}

// Window is the time in which a part of a credential is valid.
type Window struct {
	Field string // data["tls.crt"]
	// What the part is: "certificate", "CA certificate", "CRL", "OCSP response"; and
	// whose.
	What, Name string
	// Names of the server in a certificate.
	DNSNames            []string
	NotBefore, NotAfter time.Time // NotAfter is zero if it never ends
}

// Contains reports whether a part is valid at a time.
func (w Window) Contains(t time.Time) bool {
	return !t.Before(w.NotBefore) && (w.NotAfter.IsZero() || !t.After(w.NotAfter))
}

const (
	advicePair   = "write a certificate and the key that it was made for"
	adviceKey    = "use RSA with 2048 bits or more, ECDSA with P-256, P-384 or P-521, or Ed25519"
	adviceStaple = "write one OCSP response about the first certificate, in DER, or leave it out"
	adviceCRL    = "write one CRL of each CA in the bundle, and no others"
	adviceWall   = "the log takes only certificates: correct the program that wrote this, and replace the key"
)

// Judge judges the credential of a reference. It checks too that the public parts
// hold nothing but certificates, CRLs and an OCSP response, whatever wrote them.
func Judge(ref *registryv1.SecretReference) Verdict {
	j := judge{names: namesOf(func(field string) bool { _, has := ref.GetFields()[field]; return has }), path: fieldPath}
	if size := publicSize(ref); size > MaxPublic {
		j.add(problem.Error, "data", adviceWall, "has %d bytes of certificates, more than %d", size, MaxPublic)
		return j.Verdict
	}
	for _, part := range []struct {
		field   string // that the part is of
		content bool
	}{
		{j.chain, ref.GetCertificateChain() != ""}, {j.ca, ref.GetCaBundle() != ""}, {j.crl, ref.GetCrl() != ""}, {j.names.staple, len(ref.GetOcspStaple()) > 0},
	} {
		if part.field == "" && part.content {
			j.add(problem.Error, "data", adviceWall, "holds a certificate of no field")
		}
	}
	j.pair(ref)
	j.stapled(ref.GetOcspStaple())
	j.bundle(ref.GetCaBundle(), ref.GetCrl())
	return j.Verdict
}

// ConfigMap judges the CA certificates in a ConfigMap, and their CRLs; is is false if
// it has no field for them. A field without certificates is an error.
func ConfigMap(o *registryv1.Object) (v Verdict, is bool) {
	var object struct {
		Data map[string]string `json:"data"`
	}
	if len(o.GetJson()) > 0 && json.Unmarshal(o.GetJson(), &object) != nil {
		d := problem.Diagnostic{Severity: problem.Error, Code: "invalid", Field: "data", Reason: "is no mapping of texts", Advice: "correct the program that wrote it"}
		return Verdict{Problems: []problem.Diagnostic{d}}, true
	}
	data := object.Data
	j := judge{names: namesOf(func(field string) bool { _, has := data[field]; return has }), path: fieldPath}
	if j.ca == "" {
		return j.Verdict, false
	}
	cas, err := canonical([]byte(data[j.ca]), certificateBlock)
	if err != nil {
		j.error(j.ca, adviceBlocks(certificateBlock), "%v", err)
	}
	var crl string
	if data[j.crl] != "" {
		if crl, err = canonical([]byte(data[j.crl]), crlBlock); err != nil {
			j.error(j.crl, adviceBlocks(crlBlock), "%v", err)
		}
	}
	if len(j.Problems) == 0 {
		j.bundle(cas, crl)
	}
	return j.Verdict, true
}

// TrustBundle judges the roots of a trust domain, in PEM, and their CRLs, which may
// be empty.
func TrustBundle(roots, crl string) Verdict {
	j := judge{names: names{ca: "roots", crl: "crl"}, path: func(field string) string { return field }}
	j.bundle(roots, crl)
	return j.Verdict
}

type judge struct {
	Verdict
	names
	path func(field string) string // for problems
}

func (j *judge) error(field, advice, reason string, args ...any) {
	j.add(problem.Error, j.path(field), advice, reason, args...)
}

func (j *judge) add(severity problem.Severity, field, advice, reason string, args ...any) {
	j.Problems = append(j.Problems, problem.Diagnostic{
		Severity: severity, Code: "invalid", Field: field, Reason: fmt.Sprintf(reason, args...), Advice: advice,
	})
}

func (j *judge) pair(ref *registryv1.SecretReference) {
	if j.chain == "" {
		return
	}
	switch ref.GetPair() {
	case registryv1.Pair_PAIR_MISMATCH:
		j.error(j.key, advicePair, "is not the key of the certificate in %s", j.chain)
	case registryv1.Pair_PAIR_UNREADABLE:
		j.error(j.key, "write both in PEM, the key without a password", "or the certificate in %s cannot be read", j.chain)
	}
	if text := ref.GetCertificateChain(); text != "" {
		if err := strict(text, certificateBlock); err != nil {
			j.error(j.chain, adviceWall, "%v", err)
			return
		}
		chain, _ := Certificates([]byte(text)) // strict has parsed them
		if weak := weakness(chain[0].PublicKey); weak != "" {
			j.error(j.chain, adviceKey, "%s, which Envoy refuses", weak)
		}
		j.windows(j.chain, "certificate", chain)
		j.Chain = chain
	}
	if j.Pair = ref.GetPair() == registryv1.Pair_PAIR_OK && len(j.Problems) == 0; !j.Pair {
		j.Chain = nil
	}
}

// weakness returns why Envoy refuses a public key; empty: it does not.
func weakness(public any) string {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < 2048 {
			return fmt.Sprintf("has an RSA key of %d bits", n)
		}
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
		default:
			return "has a key of the curve " + k.Curve.Params().Name
		}
	case ed25519.PublicKey:
	default:
		return "has a key of another algorithm than RSA, ECDSA and Ed25519"
	}
	return ""
}

func (j *judge) stapled(der []byte) {
	if len(der) == 0 {
		return
	}
	r, err := parseStaple(der)
	switch {
	case err != nil:
		j.error(j.names.staple, adviceStaple, "%v", err)
	case len(j.Chain) == 0: // the pair is told
	case r.SerialNumber.Cmp(j.Chain[0].SerialNumber) != 0:
		j.error(j.names.staple, adviceStaple, "is about another certificate than that in %s", j.chain)
	default:
		j.Staple = r
		j.Windows = append(j.Windows, Window{Field: j.path(j.names.staple), What: "OCSP response", Name: nameOf(j.Chain[0]), NotBefore: r.ThisUpdate, NotAfter: r.NextUpdate})
	}
}

// bundle judges CA certificates and their CRLs. If one is not usable, none is: with
// part of its CRLs a context would refuse clients, and without it accept them.
func (j *judge) bundle(cas, crl string) {
	if cas == "" {
		if crl != "" {
			j.add(problem.Warning, j.path(j.crl), "add the CA certificates, or remove the CRL", "has no effect without CA certificates")
		}
		return
	}
	before := len(j.Problems)
	if err := strict(cas, certificateBlock); err != nil {
		j.error(j.ca, adviceWall, "%v", err)
		return
	}
	all, _ := Certificates([]byte(cas)) // strict has parsed them
	j.windows(j.ca, "CA certificate", all)
	var lists []*x509.RevocationList
	if crl != "" {
		if err := strict(crl, crlBlock); err != nil {
			j.error(j.crl, adviceWall, "%v", err)
			return
		}
		lists, _ = revocationLists([]byte(crl)) // strict has parsed them
		j.revoke(all, lists)
	}
	if len(j.Problems) == before {
		j.CAs, j.CRLs = all, lists
	}
}

// revoke checks that each CRL is signed by one of the CAs, and that each CA has one:
// otherwise Envoy refuses its clients (S17).
func (j *judge) revoke(cas []*x509.Certificate, lists []*x509.RevocationList) {
	has := make([]bool, len(cas))
	for i, l := range lists {
		signed := false
		for n, ca := range cas {
			if bytes.Equal(l.RawIssuer, ca.RawSubject) && l.CheckSignatureFrom(ca) == nil {
				has[n], signed = true, true
			}
		}
		if !signed {
			j.error(j.crl, adviceCRL, "CRL %d, of %q, is signed by no CA in %s", i+1, l.Issuer.String(), j.ca)
		}
		j.Windows = append(j.Windows, Window{Field: j.path(j.crl), What: "CRL", Name: l.Issuer.String(), NotBefore: l.ThisUpdate, NotAfter: l.NextUpdate})
	}
	for n, ca := range cas {
		if !has[n] {
			j.error(j.crl, adviceCRL, "has no CRL of the CA %q, so Envoy would refuse all its clients", nameOf(ca))
		}
	}
}

func (j *judge) windows(field, what string, all []*x509.Certificate) {
	for _, c := range all {
		j.Windows = append(j.Windows, Window{
			Field: j.path(field), What: what, Name: nameOf(c), DNSNames: c.DNSNames, NotBefore: c.NotBefore, NotAfter: c.NotAfter,
		})
	}
}

// nameOf returns the subject of a certificate, or a name of its server if it has
// none.
func nameOf(c *x509.Certificate) string {
	if name := c.Subject.String(); name != "" || len(c.DNSNames) == 0 {
		return name
	}
	return c.DNSNames[0]
}
