package cluster

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

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

// grpcSocket returns the transport socket of mutual TLS of the mesh for gRPC clients. They
// get certificates from a provider of their bootstrap, reject versions and ciphers, and
// look for names in match_subject_alt_names only (G10).
func (m *maker) grpcSocket(t target) *corev3.TransportSocket {
	v := &tlsv3.CertificateValidationContext{
		CaCertificateProviderInstance: secret.Provider(m.certificates),
	}
	for _, name := range m.peers(t.policy.TLS).GetMatchTypedSubjectAltNames() {
		v.MatchSubjectAltNames = append(v.MatchSubjectAltNames, name.GetMatcher()) //nolint:staticcheck // gRPC does not read its successor
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: secret.Provider(m.certificates),
		ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: v},
	}})
}
