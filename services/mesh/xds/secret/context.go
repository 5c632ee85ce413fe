package secret

import (
	"net/netip"
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
)

// Validation combines what a Listener or Cluster itself demands of a certificate with
// the CAs of a secret (SDS-10).
func Validation(v *tlsv3.CertificateValidationContext, ca string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return Combined(v, Reference(ca))
}

// Combined is Validation with the reference to the CAs.
func Combined(v *tlsv3.CertificateValidationContext, ca *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: v, ValidationContextSdsSecretConfig: ca,
		},
	}
}

// MeshContext returns what both sides of mutual TLS of the mesh have in common: the
// certificate of the proxy, the CAs of the other side's trust domains and what v demands
// beside them, and the versions and ciphers that the mesh allows.
func MeshContext(mesh *meshconfig.MeshConfig, from proxy.Certificates, trusted index.TrustSet, v *tlsv3.CertificateValidationContext) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      Parameters(mesh.GetMeshMTLS()),
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{MeshPair(from)},
		ValidationContextType:          Combined(v, peerReference(from, trusted)),
	}
}

// Provider names the certificate provider of a gRPC client's bootstrap that has its
// certificate of the mesh and the CAs of the mesh (MTLS-17).
func Provider(from proxy.Certificates) *tlsv3.CertificateProviderPluginInstance {
	return &tlsv3.CertificateProviderPluginInstance{InstanceName: from.Provider}
}

// OfTrustDomains matches the identities of these trust domains: a URI of one of them
// (MTLS-6).
func OfTrustDomains(domains []string) []*tlsv3.SubjectAltNameMatcher {
	var all []*tlsv3.SubjectAltNameMatcher
	for _, domain := range domains {
		all = append(all, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + domain + "/"}},
		})
	}
	return all
}

// SubjectAltName matches exactly this name.
func SubjectAltName(name string) *tlsv3.SubjectAltNameMatcher {
	m := &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_DNS,
		Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}},
	}
	switch _, err := netip.ParseAddr(name); {
	case err == nil:
		m.SanType = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	case strings.Contains(name, "://"):
		m.SanType = tlsv3.SubjectAltNameMatcher_URI
	case strings.Contains(name, "@"):
		m.SanType = tlsv3.SubjectAltNameMatcher_EMAIL
	}
	return m
}

// Parameters returns the versions and ciphers that are offered (DR-20).
func Parameters(defaults *meshconfig.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
	p := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites:              defaults.GetCipherSuites(),
		EcdhCurves:                defaults.GetEcdhCurves(),
	}
	if defaults.GetMinProtocolVersion() == meshconfig.MeshConfig_TLSConfig_TLSV1_3 {
		p.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return p
}
