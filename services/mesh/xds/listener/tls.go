package listener

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/secret"
)

// handshakeTimeout is how long a client may take for its TLS handshake (GW-18).
const handshakeTimeout = 15 * time.Second

// decrypt makes a chain decrypt connections as its server says, if that does. The chain
// names its secrets, whether they exist or not: without them Envoy resets its
// connections, and those of no other chain (SDS-6).
func (c *chooser) decrypt(s *gateway.Server, chain *listenerv3.FilterChain) *listenerv3.FilterChain {
	if s.TLS == nil {
		return chain
	}
	chain.TransportSocket = &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(c.context(s))},
	}
	chain.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	if s.TLS.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		chain.Filters = append(ofOneDomain(c.trust), chain.GetFilters()...)
	}
	return chain
}

// context returns the TLS settings of a server (GW-9, GW-12 to GW-15).
func (c *chooser) context(s *gateway.Server) *tlsv3.DownstreamTlsContext {
	mode := s.TLS.GetMode()
	if mode == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return c.meshContext(s)
	}
	names := secret.OfServer(s.Key.Namespace, s.TLS, c.demand)
	common := &tlsv3.CommonTlsContext{TlsParams: c.parameters(s.TLS)}
	if s.Routes != "" {
		common.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: wrapperspb.Bool(false)}
	if names.OnDemand {
		common.CustomTlsCertificateSelector = secret.Selector(names.Pairs[0])
		resumeNothing(out) // Envoy refuses the listener otherwise (S21)
	} else {
		for _, name := range names.Pairs {
			common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, secret.Reference(name))
		}
	}
	if !gateway.Verifies(s.TLS) {
		return out
	}
	common.ValidationContextType = secret.Validation(c.validation(s.TLS), names.CA)
	out.RequireClientCertificate = wrapperspb.Bool(mode != networking.ServerTLSSettings_OPTIONAL_MUTUAL)
	return resumeNothing(out)
}

// meshContext returns the TLS settings of a server for clients of the mesh (GW-12, MTLS-6).
func (c *chooser) meshContext(s *gateway.Server) *tlsv3.DownstreamTlsContext {
	out := meshServer(c.mesh, c.from, c.trust)
	out.CommonTlsContext.TlsParams = c.parameters(s.TLS)
	if s.Routes != "" {
		out.CommonTlsContext.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	return out
}

// meshServer returns what every server for clients of the mesh demands: an identity of a
// trust domain, by the roots of that domain (MTLS-6, CA-13).
func meshServer(mesh *meshconfig.MeshConfig, from proxy.Certificates, trust index.Trust) *tlsv3.DownstreamTlsContext {
	return resumeNothing(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: secret.MeshContext(mesh, from, trust.All(), &tlsv3.CertificateValidationContext{
			MatchTypedSubjectAltNames: secret.OfTrustDomains(trust.Domains()),
		}),
		RequireClientCertificate: wrapperspb.Bool(true),
	})
}

// resumeNothing makes a server that verifies clients resume no session: Envoy does not know
// who the client of a resumed one is (S44).
func resumeNothing(out *tlsv3.DownstreamTlsContext) *tlsv3.DownstreamTlsContext {
	out.SessionTicketKeysType = &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true}
	out.DisableStatefulSessionResumption = true
	return out
}

// parameters returns the versions and ciphers of a server: its own, else those of the
// mesh (DR-20).
func (c *chooser) parameters(tls *networking.ServerTLSSettings) *tlsv3.TlsParameters {
	defaults := c.mesh.GetTlsDefaults()
	if tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		defaults = c.mesh.GetMeshMTLS()
	}
	p := secret.Parameters(defaults)
	if v, ok := versions[tls.GetMinProtocolVersion()]; ok {
		p.TlsMinimumProtocolVersion = v
	}
	if v, ok := versions[tls.GetMaxProtocolVersion()]; ok {
		p.TlsMaximumProtocolVersion = v
	}
	if p.TlsMinimumProtocolVersion > p.TlsMaximumProtocolVersion { // of the mesh's minimum the server's maximum counts
		p.TlsMinimumProtocolVersion = p.TlsMaximumProtocolVersion
	}
	if all := tls.GetCipherSuites(); len(all) > 0 {
		p.CipherSuites = all
	}
	return p
}

var versions = map[networking.ServerTLSSettings_TLSProtocol]tlsv3.TlsParameters_TlsProtocol{
	networking.ServerTLSSettings_TLSV1_0: tlsv3.TlsParameters_TLSv1_0,
	networking.ServerTLSSettings_TLSV1_1: tlsv3.TlsParameters_TLSv1_1,
	networking.ServerTLSSettings_TLSV1_2: tlsv3.TlsParameters_TLSv1_2,
	networking.ServerTLSSettings_TLSV1_3: tlsv3.TlsParameters_TLSv1_3,
}

// validation returns what a client's certificate must have beside a CA of the secret
// (GW-14).
func (c *chooser) validation(tls *networking.ServerTLSSettings) *tlsv3.CertificateValidationContext {
	v := &tlsv3.CertificateValidationContext{
		VerifyCertificateSpki: tls.GetVerifyCertificateSpki(), VerifyCertificateHash: tls.GetVerifyCertificateHash(),
	}
	for _, name := range tls.GetSubjectAltNames() {
		v.MatchTypedSubjectAltNames = append(v.MatchTypedSubjectAltNames, secret.SubjectAltName(name))
	}
	return v
}
