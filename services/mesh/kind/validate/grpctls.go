package validate

import (
	"cmp"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

const (
	tlsSocket   = "envoy.transport_sockets.tls"
	useProvider = "name a certificate provider of the clients' bootstrap"
)

func (g grpc) upstreamTLS(at *fieldPath, s *corev3.TransportSocket) {
	tls := new(tlsv3.UpstreamTlsContext)
	if g.tlsSocket(at, s, tls) {
		g.tls(at.field("typed_config.common_tls_context"), tls.GetCommonTlsContext(), false)
	}
}

// downstreamTLS checks the certificates of a gRPC server.
func (g grpc) downstreamTLS(at *fieldPath, s *corev3.TransportSocket) {
	tls := new(tlsv3.DownstreamTlsContext)
	if !g.tlsSocket(at, s, tls) {
		return
	}
	at = at.field("typed_config")
	g.errorIf(tls.GetRequireSni().GetValue(), at.field("require_sni"), removeIt, neverSet)
	g.errorIf(tls.GetOcspStaplePolicy() != tlsv3.DownstreamTlsContext_LENIENT_STAPLING, at.field("ocsp_staple_policy"), removeIt, neverSet)
	root := g.tls(at.field("common_tls_context"), tls.GetCommonTlsContext(), true)
	g.errorIf(tls.GetRequireClientCertificate().GetValue() && root == "", at.field("require_client_certificate"),
		"add validation_context.ca_certificate_provider_instance", "there is nothing to check the certificates of clients with")
}

// tlsSocket reads a transport socket; false: there is none, or another one.
func (g grpc) tlsSocket(at *fieldPath, s *corev3.TransportSocket, into proto.Message) bool {
	if s == nil {
		return false
	}
	g.errorIf(s.GetName() != tlsSocket, at.field("name"), "use "+tlsSocket, "%q "+wrongGRPC, s.GetName())
	if err := s.GetTypedConfig().UnmarshalTo(into); err != nil {
		g.errorf(at.field("typed_config"), "use a "+string(into.ProtoReflect().Descriptor().Name()), "is another type")
		return false
	}
	return true
}

// tls checks certificates, which gRPC takes from certificate providers of its
// bootstrap. It returns the provider of roots.
func (g grpc) tls(at *fieldPath, c *tlsv3.CommonTlsContext, server bool) (root string) {
	if c == nil {
		g.errorf(at, "write it", isMissing)
		return ""
	}
	g.errorIf(c.GetTlsParams() != nil, at.field("tls_params"), removeIt, neverSet)
	g.errorIf(c.GetCustomHandshaker() != nil, at.field("custom_handshaker"), removeIt, neverSet)

	v, in := c.GetValidationContext(), at.field("validation_context")
	if combined := c.GetCombinedValidationContext(); combined != nil {
		v, in = combined.GetDefaultValidationContext(), at.field("combined_validation_context.default_validation_context")
	}
	old := c.GetCombinedValidationContext().GetValidationContextCertificateProviderInstance() //nolint:staticcheck // gRPC still reads it
	if old == nil {
		old = c.GetValidationContextCertificateProviderInstance() //nolint:staticcheck // gRPC still reads it
	}
	root = cmp.Or(v.GetCaCertificateProviderInstance().GetInstanceName(), old.GetInstanceName())
	g.errorIf(root == "" && (!server || v != nil), in.field("ca_certificate_provider_instance"), useProvider, isMissing)

	identity := cmp.Or(c.GetTlsCertificateProviderInstance().GetInstanceName(),
		c.GetTlsCertificateCertificateProviderInstance().GetInstanceName()) //nolint:staticcheck // gRPC still reads it
	g.errorIf(identity == "" && (server || len(c.GetTlsCertificates()) > 0 || len(c.GetTlsCertificateSdsSecretConfigs()) > 0),
		at.field("tls_certificate_provider_instance"), useProvider+", which takes the place of files and secrets", isMissing)
	if old != nil {
		return root // it checks no more in that case
	}
	g.errorIf(len(v.GetVerifyCertificateSpki()) > 0, in.field("verify_certificate_spki"), removeIt, neverSet)
	g.errorIf(len(v.GetVerifyCertificateHash()) > 0, in.field("verify_certificate_hash"), removeIt, neverSet)
	g.errorIf(v.GetRequireSignedCertificateTimestamp().GetValue(), in.field("require_signed_certificate_timestamp"), removeIt, neverSet)
	g.errorIf(v.GetCrl() != nil, in.field("crl"), removeIt, neverSet)
	g.errorIf(v.GetCustomValidatorConfig() != nil, in.field("custom_validator_config"), removeIt, neverSet)
	sans := v.GetMatchSubjectAltNames() //nolint:staticcheck // gRPC does not read its successor
	g.errorIf(server && len(sans) > 0, in.field("match_subject_alt_names"), removeIt, "gRPC servers refuse it")
	for i, m := range sans {
		g.text(in.field("match_subject_alt_names").item(i), m)
	}
	return root
}
