package secret

import (
	"net/netip"
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Validation combines what a Listener or Cluster itself demands of a certificate with
// the CAs of a secret (SDS-10).
func Validation(v *tlsv3.CertificateValidationContext, ca string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: v, ValidationContextSdsSecretConfig: Reference(ca),
		},
	}
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
