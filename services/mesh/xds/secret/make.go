package secret

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"fmt"
	"path"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// stored is the part for a secret of an object. It makes none if the object has no such
// part, or one that Envoy must not get (SDS-7).
type stored struct {
	name      string
	namespace string // of the client
	users     string // a line for each
}

// absent says why there is no secret, and what to do.
type absent struct{ reason, advice string }

func (s stored) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	p := placeOf(s.name, s.namespace)
	users := usersOf(s.users)
	one := piece.Piece{Name: s.name}
	var why *absent
	switch readable := readableBy(r, p, s.namespace, users); {
	case len(readable) == 0: // it looks at no object: whether there is one is not told
		why = refused(p, users)
	case p.kind == secretPair:
		one.Message, one.Key, why = makePair(r, p)
	case p.kind == secretCAs:
		one.Message, why = makeCAs(r, p, readable)
	default:
		one.Message, why = makeConfigMap(r, p)
	}
	if why == nil {
		secret, _ := one.Message.(*tlsv3.Secret)
		secret.Name = s.name
		return []piece.Piece{one}, nil
	}
	var ds []problem.Diagnostic
	for _, u := range users {
		ds = append(ds, u.problem(why.reason, why.advice))
	}
	return nil, ds
}

const (
	adviceReveal = "start its watcher without --public-certificates=false"
	adviceHMAC   = "give its watcher the key of HMACs, which meshlog bus-auth writes"
	advicePair   = "write tls.crt and tls.key into it"
	adviceCAs    = "write ca.crt into it, or add the Secret %s/%s" + caSuffix
)

// makePair makes the certificate of a Secret. The key is not on the log: the piece
// names it.
func makePair(r *index.Reader, p place) (*tlsv3.Secret, *piece.Key, *absent) {
	ref, key := r.Secret(p.namespace, p.name)
	if ref == nil {
		return nil, nil, missing(p)
	}
	field := credential.KeyField(ref)
	sum := ref.GetFields()[field]
	v := credential.Judge(ref)
	switch {
	case field == "":
		return nil, nil, &absent{fmt.Sprintf("%s has no certificate with its key", p), advicePair}
	case !v.Pair:
		return nil, nil, broken(p, v, "has a key that does not fit the certificate")
	case len(v.Chain) == 0:
		return nil, nil, &absent{fmt.Sprintf("the certificate in %s is not on the log", p), adviceReveal}
	case len(sum) == 0:
		return nil, nil, &absent{fmt.Sprintf("the log has no HMAC of the key in %s, by which the watcher gives it", p), adviceHMAC}
	}
	pair := &tlsv3.TlsCertificate{CertificateChain: text(ref.GetCertificateChain())}
	if v.Staple != nil {
		pair.OcspStaple = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: ref.GetOcspStaple()}}
	}
	return &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: pair}}, &piece.Key{Object: key, Field: field, Sum: string(sum)}, nil
}

// makeCAs makes the CAs of a Secret: of the first of the readable ones.
func makeCAs(r *index.Reader, p place, readable []string) (*tlsv3.Secret, *absent) {
	var ref *registryv1.SecretReference
	at := p
	for _, at.name = range readable {
		if ref, _ = r.Secret(p.namespace, at.name); ref != nil {
			break
		}
	}
	if ref == nil {
		return nil, missing(p)
	}
	v := credential.Judge(ref)
	switch {
	case len(v.CAs) > 0:
		return context(ref.GetCaBundle(), ref.GetCrl()), nil
	case !credential.HasCA(ref):
		return nil, &absent{fmt.Sprintf("%s has no CA certificates", at), fmt.Sprintf(adviceCAs, p.namespace, p.name)}
	case ref.GetCaBundle() == "":
		return nil, &absent{fmt.Sprintf("the CA certificates in %s are not on the log", at), adviceReveal}
	}
	return nil, broken(at, v, "has CA certificates that cannot be used")
}

func makeConfigMap(r *index.Reader, p place) (*tlsv3.Secret, *absent) {
	m, _ := r.ConfigMap(p.namespace, p.name)
	if m == nil {
		return nil, &absent{fmt.Sprintf("there is no %s, or --config-maps of its watcher does not name it", p), "add it, or correct the name"}
	}
	v, is := credential.ConfigMap(m)
	switch {
	case !is:
		return nil, &absent{fmt.Sprintf("%s has no CA certificates", p), "write ca.crt into it"}
	case len(v.CAs) == 0:
		return nil, broken(p, v, "has CA certificates that cannot be used")
	}
	return context(v.Bundle()), nil
}

// context returns a validation context with CAs, which must not be empty: without CAs
// Envoy accepts every client (S16).
func context(cas, crl string) *tlsv3.Secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: text(cas)}
	if crl != "" {
		v.Crl = text(crl)
	}
	return &tlsv3.Secret{Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}}
}

// roots is the part for the CAs of the mesh: all roots of its trust bundle, also those that
// issue nothing yet, or nothing any more (CA-10).
type roots struct{ users string }

func (p roots) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	b, domain := r.TrustBundle()
	if b == nil {
		var ds []problem.Diagnostic
		if p.users == "" { // of a sidecar's own listeners
			return nil, nil
		}
		for _, u := range usersOf(p.users) {
			ds = append(ds, u.problem("there is no TrustBundle of the trust domain "+domain, "run the certificate authority of the mesh: bin/ca, or meshlog up --ca"))
		}
		return nil, ds
	}
	var all strings.Builder
	for _, root := range b.GetRoots() {
		all.WriteString(root.GetCertificate())
	}
	secret := context(all.String(), b.GetCrl())
	secret.Name = Roots
	return []piece.Piece{{Name: Roots, Message: secret}}, nil
}

func missing(p place) *absent {
	return &absent{fmt.Sprintf("there is no %s, or its watcher leaves it out", p), "add it, or correct the name"}
}

// broken says why a credential cannot be used, by its first problem.
func broken(p place, v credential.Verdict, otherwise string) *absent {
	for _, d := range v.Problems {
		if d.Severity == problem.Error {
			return &absent{fmt.Sprintf("%s: %s %s", p, d.Field, d.Reason), d.Advice}
		}
	}
	return &absent{fmt.Sprintf("%s %s", p, otherwise), "correct it"}
}

// files is the part for a secret in files on the proxy. Envoy reads them, and again when
// the directory changes (S25), so no key passes through here.
type files struct{ name string }

func (f files) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	p := placeOf(f.name, "")
	secret := &tlsv3.Secret{Name: f.name}
	if p.kind == filesPair {
		secret.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: file(p.first), PrivateKey: file(p.second), WatchedDirectory: directory(p.first),
		}}
		return []piece.Piece{{Name: f.name, Message: secret}}, nil
	}
	v := &tlsv3.CertificateValidationContext{TrustedCa: file(SystemCAs)}
	if p.first != system {
		v.TrustedCa, v.WatchedDirectory = file(p.first), directory(p.first)
	}
	if p.second != "" {
		v.Crl = file(p.second)
	}
	secret.Type = &tlsv3.Secret_ValidationContext{ValidationContext: v}
	return []piece.Piece{{Name: f.name, Message: secret}}, nil
}

// SystemCAs is the file of authorities that a proxy's system trusts.
const SystemCAs = "/etc/ssl/certs/ca-certificates.crt"

func directory(file string) *corev3.WatchedDirectory {
	return &corev3.WatchedDirectory{Path: path.Dir(file)}
}

// algorithms is the part that looks whether the certificates of one server have keys of
// different algorithms (SDS-13). It makes nothing.
type algorithms struct {
	names     string // one per line
	namespace string
	users     string
}

func (a algorithms) Make(r *index.Reader) (_ []piece.Piece, ds []problem.Diagnostic) {
	has := map[string]place{}
	for name := range strings.SplitSeq(a.names, "\n") {
		p := placeOf(name, a.namespace)
		if p.kind != secretPair || len(readableBy(r, p, a.namespace, usersOf(a.users))) == 0 {
			continue
		}
		ref, _ := r.Secret(p.namespace, p.name)
		algorithm := algorithmOf(ref)
		if other, twice := has[algorithm]; twice && algorithm != "" {
			for _, u := range usersOf(a.users) {
				ds = append(ds, problem.Diagnostic{
					Severity: problem.Warning, Code: "credential", Key: u.key, Field: u.field,
					Reason: fmt.Sprintf("%s and %s both have keys for %s", other, p, algorithm),
					Advice: "name one certificate for each algorithm",
					Effect: "clients of " + u.hosts + " get either",
				})
			}
		}
		has[algorithm] = p
	}
	return nil, ds
}

// algorithmOf returns the algorithm of the key of a Secret; empty: it is not known.
func algorithmOf(ref *registryv1.SecretReference) string {
	v := credential.Judge(ref)
	if len(v.Chain) == 0 {
		return ""
	}
	switch v.Chain[0].PublicKey.(type) {
	case *rsa.PublicKey:
		return "RSA"
	case *ecdsa.PublicKey:
		return "ECDSA"
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return ""
}
