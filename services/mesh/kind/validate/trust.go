package validate

import (
	"cmp"
	"net/url"
	"strings"

	"google.golang.org/protobuf/proto"

	meshconfig "istio.io/api/mesh/v1alpha1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/problem"
)

const isProgram = "correct the program that wrote it"

// TrustBundle checks that proxies can trust the roots of a domain, and that nothing but
// certificates and CRLs is on the log. A bundle that is invalid replaces no good one:
// without roots, Envoy accepts every client (S16).
func TrustBundle(m proto.Message) []problem.Diagnostic {
	b := m.(*registryv1.TrustBundle)
	c := checker{}
	c.trustDomain(&fieldPath{name: "trust_domain"}, b.GetTrustDomain())
	roots := &fieldPath{name: "roots"}
	var all strings.Builder
	active, seen := false, map[string]bool{}
	for i, r := range b.GetRoots() {
		c.root(roots.item(i), r, seen)
		active = active || r.GetState() == registryv1.RootState_ROOT_STATE_ACTIVE
		all.WriteString(r.GetCertificate())
	}
	c.errorIf(!active, roots, isProgram, "has no active root")
	c.errorIf(all.Len()+len(b.GetCrl()) > credential.MaxPublic, roots, "remove roots", "has more than 256 KB of certificates")
	if len(c.problems) == 0 {
		c.problems = append(c.problems, credential.TrustBundle(all.String(), b.GetCrl()).Problems...)
	}
	return c.result()
}

func (c *checker) root(at *fieldPath, r *registryv1.Root, seen map[string]bool) {
	certificate := at.field("certificate")
	switch v := credential.TrustBundle(r.GetCertificate(), ""); {
	case r.GetCertificate() == "":
		c.errorf(certificate, isProgram, isEmpty)
	case len(v.CAs) == 0:
		c.errorf(certificate, v.Problems[0].Advice, "%s", v.Problems[0].Reason)
	case len(v.CAs) > 1:
		c.errorf(certificate, isProgram, "holds more than one certificate")
	case !v.CAs[0].IsCA:
		c.errorf(certificate, isProgram, "is not the certificate of a CA")
	case !first(seen, string(v.CAs[0].Raw)):
		c.errorf(certificate, keepOne, "is there twice")
	}
	switch r.GetState() {
	case registryv1.RootState_ROOT_STATE_ANNOUNCED, registryv1.RootState_ROOT_STATE_ACTIVE, registryv1.RootState_ROOT_STATE_RETIRING:
	default:
		c.errorf(at.field("state"), isProgram, "is not announced, active or retiring")
	}
}

// authorities checks the roots of other trust domains (CA-13). Roots of the mesh's own trust
// domain come from its certificate authority only, as the source of a TrustBundle does.
func (c *checker) authorities(m *meshconfig.MeshConfig) {
	own, size := cmp.Or(m.GetTrustDomain(), "cluster.local"), 0
	for i, ca := range m.GetCaCertificates() {
		at := root.field("caCertificates").item(i)
		text := ca.GetPem()
		size += len(text)
		if text != "" {
			c.authority(at.field("pem"), text)
		}
		for j, domain := range ca.GetTrustDomains() {
			at := at.field("trustDomains").item(j)
			c.trustDomain(at, domain)
			if domain == own {
				c.add(problem.Warning, "no-effect", at, "remove it, and let the certificate authority publish the root", "the roots of the mesh's own trust domain are those of its TrustBundle only")
			}
		}
		switch {
		case text != "" && len(ca.GetTrustDomains()) == 0:
			c.add(problem.Warning, "no-effect", at, "name the trust domains of which these are the roots", "has no trustDomains, and a root that stood for every domain could stand for the mesh itself: no proxy trusts it")
		case text == "" && len(ca.GetTrustDomains()) > 0:
			c.add(problem.Warning, "no-effect", at, "write the roots into pem", "has no roots")
		}
	}
	c.errorIf(size > credential.MaxPublic, root.field("caCertificates"), "remove roots", "has more than 256 KB of certificates")
}

// authority checks PEM with roots.
func (c *checker) authority(at *fieldPath, text string) {
	all, err := credential.Certificates([]byte(text))
	if err != nil {
		c.errorf(at, "write certificates of CAs in PEM, and nothing else", "%v", err)
	}
	for i, cert := range all {
		if !cert.IsCA {
			c.errorf(at, "write the root that issues the workloads' certificates", "certificate %d is not the certificate of a CA", i+1)
		}
	}
}

func (c *checker) trustDomain(at *fieldPath, domain string) {
	c.errorIf(!isName(domain, "-._", maxHost) || strings.ToLower(domain) != domain, at, "write a name like cluster.local", "%q is not a trust domain", domain)
}

// Jwks checks that the keys of an issuer are public, and that Envoy takes them.
func Jwks(m proto.Message) []problem.Diagnostic {
	j := m.(*registryv1.Jwks)
	c := checker{}
	issuer := &fieldPath{name: "issuer"}
	c.errorIf(j.GetIssuer() == "", issuer, isProgram, isEmpty)
	c.oneLine(issuer, j.GetIssuer())
	at, err := url.Parse(j.GetUri())
	c.errorIf(err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil, &fieldPath{name: "uri"}, "write a URL that begins with https://", "is not the URL of a key set")
	keys := &fieldPath{name: "keys"}
	switch public, err := jwks.Public([]byte(j.GetKeys())); {
	case err != nil:
		c.errorf(keys, "put only public keys on the log, and replace a key that is no longer secret", "%v", err)
	case public != j.GetKeys():
		c.errorf(keys, isProgram, "is not as the log has key sets: without spaces, the members sorted, and public ones only")
	}
	return c.result()
}
