package cluster

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/secret"
)

// errNoProvider: gRPC clients of the class have no certificate of the mesh (MTLS-17).
const errNoProvider = "gRPC clients whose metadata names no certificate provider of their bootstrap (GRPC_CERTIFICATE_PROVIDER) cannot take part in mutual TLS"

// encrypted reports whether gRPC clients call a target in mutual TLS of the mesh: a rule
// says so, or every endpoint demands it. All endpoints of a gRPC client's cluster are
// called alike, and a port of a sidecar that is PERMISSIVE takes the TLS of gRPC clients,
// which offer h2 by ALPN, for TLS of the application (MTLS-17).
func (m *maker) encrypted(t target) bool {
	switch {
	case !m.mutual:
		return false
	case t.policy.TLS != nil:
		return t.policy.TLS.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	case !m.automatic(t):
		return false
	}
	all, some := m.endpoints[t.port.Number], false
	for i := range all {
		e := &all[i]
		if !hasLabels(e, t.subset.GetLabels()) || m.service.Resolution == index.Static && !forGRPC(e) {
			continue
		}
		if !e.MutualTLS || m.peerMode(e) != index.PeerStrict {
			return false
		}
		some = true
	}
	return some
}

// namedAt returns the field that names the certificates of a target's servers.
func (m *maker) namedAt(t target) (ident.Key, string) {
	if len(t.policy.TLS.GetSubjectAltNames()) > 0 {
		return m.ruleKey, t.policy.Fields.TLS + ".subjectAltNames"
	}
	if m.service.Kubernetes {
		return m.service.Key, "metadata.annotations[alpha.istio.io/canonical-serviceaccounts]"
	}
	return m.service.Key, "spec.subjectAltNames"
}

// reportTrust reports that gRPC clients do not trust the other trust domains that they expect
// a server of: the provider of their bootstrap has the roots of the mesh only (CA-13).
func (m *maker) reportTrust(t target, trusted index.TrustSet) {
	if trusted == "" {
		return
	}
	key, field := m.namedAt(t)
	m.cannot(key, field, "gRPC clients have the roots of the mesh's own trust domain only, and "+m.service.Hostname+" may have servers of "+string(trusted),
		"call these servers by a sidecar", "gRPC clients refuse servers of other trust domains")
}

// grpcSocket returns the transport socket of mutual TLS of the mesh for gRPC clients. They
// get certificates from a provider of their bootstrap, reject versions and ciphers, and
// look for names in match_subject_alt_names only (G10).
func (m *maker) grpcSocket(t target) *corev3.TransportSocket {
	v := &tlsv3.CertificateValidationContext{
		CaCertificateProviderInstance: secret.Provider(m.certificates),
	}
	accepted, trusted := m.peers(t.policy.TLS)
	m.reportTrust(t, trusted)
	for _, name := range accepted {
		v.MatchSubjectAltNames = append(v.MatchSubjectAltNames, name.GetMatcher()) //nolint:staticcheck // gRPC does not read its successor
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: secret.Provider(m.certificates),
		ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: v},
	}})
}
