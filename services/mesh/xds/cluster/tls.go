package cluster

import (
	"cmp"
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/secret"
	"meshlog.dev/services/mesh/xds/traffic"
)

// transportSocket returns how to connect to endpoints; nil: with plain TCP.
// With an error there must be no connections at all.
func (m *maker) transportSocket(t target) (*corev3.TransportSocket, error) {
	socket, err := m.tlsSocket(t)
	if err != nil || t.policy.ProxyProtocol == nil {
		return socket, err
	}
	if socket == nil {
		socket = transportSocket("envoy.transport_sockets.raw_buffer", &rawv3.RawBuffer{})
	}
	return proxied(socket, t.policy), nil
}

// proxied returns a transport socket that sends a PROXY header before the connection, if the
// policy says so (DR-22).
func proxied(socket *corev3.TransportSocket, policy traffic.Policy) *corev3.TransportSocket {
	if policy.ProxyProtocol == nil {
		return socket
	}
	version := corev3.ProxyProtocolConfig_V1
	if policy.ProxyProtocol.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	return transportSocket("envoy.transport_sockets.upstream_proxy_protocol", &proxyprotocolv3.ProxyProtocolUpstreamTransport{
		Config:          &corev3.ProxyProtocolConfig{Version: version},
		TransportSocket: socket,
	})
}

func transportSocket(name string, m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(m)}}
}

// tlsSocket returns the TLS settings of a rule: none for DISABLE (DR-16), those
// of SIMPLE and MUTUAL (DR-17) with the mesh's parameters (DR-20), mutual TLS of the mesh
// for ISTIO_MUTUAL (DR-18).
func (m *maker) tlsSocket(t target) (*corev3.TransportSocket, error) {
	tls := t.policy.TLS
	switch tls.GetMode() {
	case networking.ClientTLSSettings_DISABLE:
		return nil, nil
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if !m.mutual {
			return nil, errNoCertificates
		}
		return m.meshSocket(t), nil
	default:
		return nil, fmt.Errorf("mode %v is not known", tls.GetMode())
	}
	common := &tlsv3.CommonTlsContext{TlsParams: secret.Parameters(m.mesh.GetTlsDefaults())}
	if tls.GetCredentialName() != "" {
		if err := m.credential(common, tls); err != nil {
			return nil, err
		}
	} else if common.ValidationContextType = m.validation(tls); tls.GetMode() == networking.ClientTLSSettings_MUTUAL {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{
			CertificateChain: file(tls.GetClientCertificate()), PrivateKey: file(tls.GetPrivateKey()),
		}}
	}
	if m.upgrades(t.port, t.policy.Pool.GetHttp()) || t.port.Protocol.IsHTTP2() {
		common.AlpnProtocols = []string{"h2"}
	}
	return transportSocket("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{Sni: tls.GetSni(), CommonTlsContext: common}), nil
}

// errUnselected: a rule that selects no workloads gives sidecars no keys (SDS-4).
var errUnselected = errors.New("sidecars have a credentialName only by a rule with a workloadSelector")

// credential makes a cluster ask for the secrets of a credential (DR-17). The names that
// are accepted stay in the cluster, and with them Envoy refuses to have no CAs (SDS-10).
func (m *maker) credential(common *tlsv3.CommonTlsContext, tls *networking.ClientTLSSettings) error {
	client := index.ClientSidecar
	if m.router {
		client = index.ClientRouter
	}
	if !secret.ForClient(client, m.rule) {
		return errUnselected
	}
	names := secret.OfClient(m.ruleKey.Namespace, tls)
	for _, name := range names.Pairs {
		common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, secret.Reference(name))
	}
	if names.CA == "" {
		common.ValidationContextType = m.validation(tls)
		return nil
	}
	v := &tlsv3.CertificateValidationContext{}
	for _, name := range m.subjectAltNames(tls) {
		v.MatchTypedSubjectAltNames = append(v.MatchTypedSubjectAltNames, secret.SubjectAltName(name))
	}
	common.ValidationContextType = secret.Validation(v, names.CA)
	return nil
}

// validation returns what an endpoint's certificate must prove.
func (m *maker) validation(tls *networking.ClientTLSSettings) *tlsv3.CommonTlsContext_ValidationContext {
	v := &tlsv3.CertificateValidationContext{}
	if !tls.GetInsecureSkipVerify().GetValue() {
		// An Envoy whose image lacks the file rejects the cluster, so it sends nothing.
		v.TrustedCa = file(cmp.Or(tls.GetCaCertificates(), secret.SystemCAs))
		if crl := tls.GetCaCrl(); crl != "" {
			v.Crl = file(crl)
		}
		for _, name := range m.subjectAltNames(tls) {
			v.MatchTypedSubjectAltNames = append(v.MatchTypedSubjectAltNames, secret.SubjectAltName(name))
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
