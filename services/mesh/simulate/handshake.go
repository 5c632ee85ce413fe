package simulate

import (
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"meshlog.dev/services/mesh/xds/secret"
)

// MeshALPN returns what the sidecar of a client offers in its handshakes.
func MeshALPN(tcp bool) []string {
	if tcp {
		return []string{"istio"}
	}
	return []string{"istio-http/1.1", "istio"}
}

// handshake reports whether a filter chain decrypts the connection, or why it refuses it.
// It returns an error if it cannot tell. A certificate that the server does not ask for is
// removed from the call.
func handshake(chain *listenerv3.FilterChain, c *Call) (decrypted bool, refused string, err error) {
	socket := chain.GetTransportSocket().GetTypedConfig()
	var s tlsv3.DownstreamTlsContext
	switch {
	case socket == nil:
		return false, "", nil
	case !socket.MessageIs(&s) || socket.UnmarshalTo(&s) != nil:
		return false, "", fmt.Errorf("cannot simulate transport socket %s", chain.GetTransportSocket().GetName())
	case !c.TLS:
		return false, "the connection is not encrypted", nil
	case c.Certificate == nil && s.GetRequireClientCertificate().GetValue():
		return false, "the client shows no certificate", nil
	}
	validation := s.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext()
	if validation == nil {
		validation = s.GetCommonTlsContext().GetValidationContext()
	}
	if s.GetCommonTlsContext().GetValidationContextType() == nil {
		c.Certificate = nil
	}
	accepted := validation.GetMatchTypedSubjectAltNames()
	switch {
	case c.Certificate == nil:
		return true, "", nil
	case c.Untrusted:
		return false, "the client's certificate is not one that the proxy's CAs stand for", nil
	case len(accepted) == 0:
		return true, "", nil
	}
	if !slices.ContainsFunc(accepted, func(m *tlsv3.SubjectAltNameMatcher) bool {
		return m.GetSanType() == tlsv3.SubjectAltNameMatcher_URI &&
			slices.ContainsFunc(c.Certificate.URIs, func(uri string) bool { return matchString(m.GetMatcher(), uri) })
	}) {
		return false, "the client's certificate is not of a trust domain that the proxy accepts", nil
	}
	if !inTrusted(s.GetCommonTlsContext(), c.Certificate.URIs) {
		return false, "the proxy has no CAs for the trust domain of the first URI of the client's certificate", nil
	}
	return true, "", nil
}

// inTrusted reports whether the first URI of a certificate is in a trust domain of which the
// CAs count, if those of several domains do: that URI decides which CAs verify it (CA-13).
func inTrusted(of *tlsv3.CommonTlsContext, uris []string) bool {
	domains := secret.TrustedDomains(of.GetCombinedValidationContext().GetValidationContextSdsSecretConfig().GetName())
	if len(domains) < 2 {
		return true
	}
	return len(uris) > 0 && slices.ContainsFunc(domains, func(d string) bool { return strings.HasPrefix(uris[0], "spiffe://"+d+"/") })
}
