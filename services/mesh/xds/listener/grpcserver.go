package listener

import (
	"net/netip"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/secret"
)

// serverParts returns the parts of the Listeners of a gRPC server: for each port of its
// workload one for each address on which it may listen (MTLS-17). Its bootstrap has the
// server_listener_resource_name_template index.GRPCServer + "%s".
func serverParts(class index.LDSClass) []piece.Part {
	addresses := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if own, err := netip.ParseAddr(class.Address); err == nil {
		addresses = append(addresses, own)
	}
	policies := policy.OfServers(class)
	var parts []piece.Part
	last := uint32(0)
	for _, p := range class.Inbound.Ports() {
		if p.Port == last || p.Service == (index.ServiceID{}) || !piece.TakesRequests(p.Protocol) {
			continue
		}
		last = p.Port
		for _, address := range addresses {
			parts = append(parts, served{address, p.Port, p.Mode, class.Certificates, policies})
		}
		parts = append(parts, servedAs{p, class.Certificates})
	}
	if len(parts) > 0 {
		parts = append(parts, serverPolicies{policies})
	}
	return parts
}

// served is the part for the Listener of one port of a gRPC server.
type served struct {
	address      netip.Addr
	port         uint32
	mode         index.PeerMode
	certificates proxy.Certificates
	policies     policy.Servers
}

// Make returns no Listener for a port that is STRICT if the server has no certificate: it
// does not serve then (MTLS-16).
func (s served) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	strict := s.mode == index.PeerStrict
	if strict && s.certificates.Provider == "" {
		return nil, nil
	}
	chain := &listenerv3.FilterChain{Name: "inbound"}
	if strict {
		chain.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: piece.Any(&tlsv3.DownstreamTlsContext{
				RequireClientCertificate: wrapperspb.Bool(true),
				CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificateProviderInstance: secret.Provider(s.certificates),
					ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
						CaCertificateProviderInstance: secret.Provider(s.certificates),
					}},
				},
			}),
		}}
	}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: "inbound",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "inbound", VirtualHosts: []*routev3.VirtualHost{{Name: "inbound", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
			}}}},
		}},
		HttpFilters: append(s.policies.Filters(r, strict), httpFilter(routerFilter, &routerv3.Router{})),
	}
	chain.Filters = []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(manager)}}}
	l := &listenerv3.Listener{
		Name:    index.GRPCServer + netip.AddrPortFrom(s.address, uint16(s.port)).String(),
		Address: socket(s.address.String(), s.port), TrafficDirection: corev3.TrafficDirection_INBOUND, FilterChains: []*listenerv3.FilterChain{chain},
	}
	return []piece.Piece{{Name: l.GetName(), Message: l}}, nil
}

// servedAs reports what a port of a gRPC server does instead of what its mode says.
type servedAs struct {
	port         index.InboundPort
	certificates proxy.Certificates
}

// Make implements piece.Part.
func (s servedAs) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	of := r.Service(s.port.Service)
	if of == nil || s.port.Mode == index.PeerDisable || s.port.Mode == index.PeerStrict && s.certificates.Provider != "" {
		return nil, nil
	}
	d := problem.Diagnostic{Severity: problem.Info, Code: "unsupported", Key: of.Key, Field: "spec.ports"}
	port := strconv.FormatUint(uint64(s.port.Port), 10)
	if d.Reason = "gRPC servers cannot take mutual TLS and plain text on port " + port; s.port.Mode == index.PeerStrict {
		d.Reason, d.Effect = "gRPC servers without a certificate cannot demand mutual TLS on port "+port, "they do not serve it"
		d.Advice = "add a certificate provider to the bootstrap, and name it in the metadata"
	} else {
		d.Effect, d.Advice = "they take plain text only", "make the port STRICT with a PeerAuthentication"
	}
	return nil, []problem.Diagnostic{d}
}

// serverPolicies reports the policies that gRPC servers cannot enforce.
type serverPolicies struct{ policies policy.Servers }

// Make implements piece.Part.
func (s serverPolicies) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return nil, s.policies.Problems(r)
}
