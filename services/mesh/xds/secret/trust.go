package secret

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
)

const setScheme = Roots + ":"

// nameOfRoots returns the name of the CAs of trust domains.
func nameOfRoots(set index.TrustSet) string {
	if set == "" {
		return Roots
	}
	return setScheme + string(set)
}

// TrustedDomains returns the trust domains that the name of a secret with CAs lists. The
// name of the mesh's own CAs lists none.
func TrustedDomains(name string) []string {
	if set, ok := strings.CutPrefix(name, setScheme); ok {
		return index.TrustSet(set).Domains()
	}
	return nil
}

// peerReference returns how a proxy asks for the CAs of trust domains. Its own source of
// certificates has those of the mesh only; the others are public, and come by ADS.
func peerReference(from proxy.Certificates, set index.TrustSet) *tlsv3.SdsSecretConfig {
	if set == "" {
		return MeshRoots(from)
	}
	return Reference(nameOfRoots(set))
}

// peerParts returns a part for each set of trust domains by which some proxy verifies its
// peers. They are for all clients, because the CAs are public.
func peerParts(r *index.Reader) []piece.Part {
	var parts []piece.Part
	for _, set := range r.TrustSets() {
		parts = append(parts, peerRoots{set})
	}
	if domains, key := r.Untrusted(); len(domains) > 0 {
		parts = append(parts, piece.Problem(problem.Diagnostic{
			Severity: problem.Error, Code: "trust-domain", Key: key, Field: "spec.caCertificates",
			Reason: "the log has no TrustBundle of the mesh's own trust domain, and a proxy that trusts several domains needs the roots of each",
			Advice: "run the certificate authority of the mesh, or publish its roots: bin/ca with --signer none and --trust-bundle",
			Effect: "proxies refuse workloads of " + strings.Join(domains, ", "),
		}))
	}
	return parts
}

// peerRoots is the part for the CAs of trust domains.
type peerRoots struct{ set index.TrustSet }

// spiffeValidator is Envoy's validator that verifies a certificate by the roots of its
// trust domain.
const spiffeValidator = "envoy.tls.cert_validator.spiffe"

// Make makes no secret if a domain has no roots: an empty context accepts every peer (S16).
// The CAs of one domain are as those of the mesh.
func (p peerRoots) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	t := r.Trust()
	config := &tlsv3.SPIFFECertValidatorConfig{}
	for _, domain := range p.set.Domains() {
		roots, crl := t.Bundle(domain)
		if roots == "" {
			return nil, nil
		}
		config.TrustDomains = append(config.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{Name: domain, TrustBundle: text(roots + crl)})
	}
	name := nameOfRoots(p.set)
	if all := config.GetTrustDomains(); len(all) == 1 {
		secret := context(all[0].GetTrustBundle().GetInlineString(), "")
		secret.Name = name
		return []piece.Piece{{Name: name, Message: secret}}, nil
	}
	return []piece.Piece{{Name: name, Message: &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: spiffeValidator, TypedConfig: piece.Any(config)},
		},
	}}}}, nil
}

// HasOwnRoots reports whether a secret of a name has the CAs of the mesh's own trust domain.
func HasOwnRoots(name, domain string) bool {
	return name == Roots || slices.Contains(TrustedDomains(name), domain)
}

// OwnRoots returns the CAs of the mesh's own trust domain that a secret has, and maybe their
// CRLs, in PEM.
func OwnRoots(s *tlsv3.Secret, domain string) string {
	for _, d := range BundlesOf(s) {
		if d.GetName() == domain {
			return d.GetTrustBundle().GetInlineString()
		}
	}
	return s.GetValidationContext().GetTrustedCa().GetInlineString()
}

// BundlesOf returns the CAs of each trust domain in a secret with those of several.
func BundlesOf(s *tlsv3.Secret) []*tlsv3.SPIFFECertValidatorConfig_TrustDomain {
	var config tlsv3.SPIFFECertValidatorConfig
	if custom := s.GetValidationContext().GetCustomValidatorConfig(); custom == nil || custom.GetTypedConfig().UnmarshalTo(&config) != nil {
		return nil
	}
	return config.GetTrustDomains()
}
