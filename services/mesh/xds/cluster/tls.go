package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// systemCAs is the file of authorities that a proxy's system trusts. An Envoy
// whose image lacks it rejects the cluster, so it sends nothing.
const systemCAs = "/etc/ssl/certs/ca-certificates.crt"

// transportSocket returns how to connect to endpoints; nil: with plain TCP.
// With an error there must be no connections at all.
func (m *maker) transportSocket(port index.Port, policy traffic.Policy) (*corev3.TransportSocket, error) {
	socket, err := m.tlsSocket(port, policy)
	if err != nil || policy.ProxyProtocol == nil {
		return socket, err
	}
	if socket == nil {
		socket = transportSocket("envoy.transport_sockets.raw_buffer", &rawv3.RawBuffer{})
	}
	version := corev3.ProxyProtocolConfig_V1
	if policy.ProxyProtocol.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	return transportSocket("envoy.transport_sockets.upstream_proxy_protocol", &proxyprotocolv3.ProxyProtocolUpstreamTransport{ // a PROXY header precedes the connection (DR-22)
		Config:          &corev3.ProxyProtocolConfig{Version: version},
		TransportSocket: socket,
	}), nil
}

func transportSocket(name string, m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(m)}}
}

// tlsSocket returns the TLS settings of a rule: none for DISABLE (DR-16), those
// of SIMPLE and MUTUAL (DR-17) with the mesh's parameters (DR-20).
func (m *maker) tlsSocket(port index.Port, policy traffic.Policy) (*corev3.TransportSocket, error) {
	tls := policy.TLS
	switch tls.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
		return nil, nil
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		return nil, errors.New("mode ISTIO_MUTUAL is not supported yet: proxies have no certificates of the mesh")
	default:
		return nil, fmt.Errorf("mode %v is not known", tls.GetMode())
	}
	if tls.GetCredentialName() != "" {
		return nil, errors.New("credentialName is not supported yet: secrets are not served")
	}
	common := &tlsv3.CommonTlsContext{
		TlsParams:             tlsParameters(m.mesh.GetTlsDefaults()),
		ValidationContextType: m.validation(tls),
	}
	if tls.GetMode() == networking.ClientTLSSettings_MUTUAL {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{
			CertificateChain: file(tls.GetClientCertificate()), PrivateKey: file(tls.GetPrivateKey()),
		}}
	}
	if m.upgrades(port, policy.Pool.GetHttp()) || port.Protocol.IsHTTP2() {
		common.AlpnProtocols = []string{"h2"}
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{Sni: tls.GetSni(), CommonTlsContext: common}), nil
}

// tlsParameters returns the versions and ciphers that are offered (DR-20).
func tlsParameters(defaults *meshconfig.MeshConfig_TLSConfig) *tlsv3.TlsParameters {
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

// validation returns what an endpoint's certificate must prove.
func (m *maker) validation(tls *networking.ClientTLSSettings) *tlsv3.CommonTlsContext_ValidationContext {
	v := &tlsv3.CertificateValidationContext{}
	if !tls.GetInsecureSkipVerify().GetValue() {
		v.TrustedCa = file(cmp.Or(tls.GetCaCertificates(), systemCAs))
		if crl := tls.GetCaCrl(); crl != "" {
			v.Crl = file(crl)
		}
		for _, name := range m.subjectAltNames(tls) {
			v.MatchTypedSubjectAltNames = append(v.MatchTypedSubjectAltNames, subjectAltName(name))
		}
	}
	return &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: v}
}

// subjectAltNames returns the names that are accepted in a certificate; none: only
// the name of the request's host. Names of the rule win over names of the
// ServiceEntry (SE-12).
func (m *maker) subjectAltNames(tls *networking.ClientTLSSettings) []string {
	if names := tls.GetSubjectAltNames(); len(names) > 0 {
		return names
	}
	return m.service.SubjectAltNames
}

// subjectAltName matches exactly this name.
func subjectAltName(name string) *tlsv3.SubjectAltNameMatcher {
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

// automaticNames takes the names that the rule leaves open from the request's
// host: the server name to ask for, and the name that the certificate must
// have. The latter would replace names of the rule.
func (m *maker) automaticNames(tls *networking.ClientTLSSettings) *corev3.UpstreamHttpProtocolOptions {
	switch tls.GetMode() {
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
	default:
		return nil
	}
	if tls.GetSni() != "" {
		return nil
	}
	return &corev3.UpstreamHttpProtocolOptions{
		AutoSni:           true,
		AutoSanValidation: len(m.subjectAltNames(tls)) == 0 && !tls.GetInsecureSkipVerify().GetValue(),
	}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
