package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/simulate/rbac"
	"meshlog.dev/services/mesh/xds/piece"
)

// Peers are the identities of the two workloads of a call; empty: not known.
type Peers struct{ Client, Server string }

// Onward returns the call that the workload at an endpoint gets when the proxy forwards a
// call. endpoint is one of o.To[i].Endpoints, and cluster that of o.To[i]. Its error says
// why the proxy sends nothing, or what Onward cannot tell.
func (p *Proxy) Onward(o Outcome, cluster, endpoint string, peers Peers) (Call, error) {
	if o.sent == nil {
		return Call{}, errors.New("the call is not forwarded")
	}
	c := *o.sent
	if o.unsaid != "" {
		return c, fmt.Errorf("cannot simulate what the route makes of the %s", o.unsaid)
	}
	c.Inbound = true
	of := p.clusters[cluster]
	if of.GetType() != clusterv3.Cluster_ORIGINAL_DST { // else it is that of the call
		at, err := netip.ParseAddrPort(endpoint)
		if err != nil {
			return c, fmt.Errorf("endpoint %q has no address and port, or is not healthy", endpoint)
		}
		c.Address, c.Port = at.Addr(), uint32(at.Port())
	}
	socket, err := p.socket(of, endpoint)
	if err != nil || socket == nil {
		return c, err
	}
	return encrypted(of, c, socket, peers)
}

// encrypted returns a call as the server gets it over TLS. It returns an error if the client
// refuses the server.
func encrypted(of *clusterv3.Cluster, c Call, socket *tlsv3.UpstreamTlsContext, peers Peers) (Call, error) {
	if c.TLS { // of the caller, which the proxy did not decrypt: the server sees no request
		c = Call{Inbound: true, Address: c.Address, Port: c.Port, TCP: true}
	}
	common := socket.GetCommonTlsContext()
	c.TLS, c.ServerName, c.ALPN = true, socket.GetSni(), common.GetAlpnProtocols()
	if names := of.GetMetadata().GetFilterMetadata()[piece.ALPNMetadata].GetFields()[piece.ALPNKey].GetStringValue(); c.offers && names != "" {
		c.ALPN = strings.Split(names, ",")
	}
	if c.ALPN == nil {
		c.ALPN = []string{} // it offers none
	}
	for _, s := range common.GetTlsCertificateSdsSecretConfigs() {
		switch {
		case !slices.Contains(c.ALPN, "istio"): // else it is the client's certificate of the mesh (MTLS-7)
			return c, fmt.Errorf("cannot simulate a client with the certificate %s", s.GetName())
		case peers.Client == "":
			return c, errors.New("the identity of the client is not known")
		}
		c.Certificate = rbac.CertificateOf(peers.Client)
	}
	accepted := common.GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
	if len(accepted) == 0 || peers.Server == "" {
		return c, nil
	}
	if !slices.ContainsFunc(accepted, func(m *tlsv3.SubjectAltNameMatcher) bool {
		return m.GetSanType() == tlsv3.SubjectAltNameMatcher_URI && matchString(m.GetMatcher(), peers.Server)
	}) {
		return c, fmt.Errorf("the client refuses the certificate of %s, which is not an identity behind the service", peers.Server)
	}
	return c, nil
}

// socket returns the TLS settings with which a proxy calls an endpoint; nil: plain text.
func (p *Proxy) socket(of *clusterv3.Cluster, endpoint string) (*tlsv3.UpstreamTlsContext, error) {
	socket := of.GetTransportSocket()
	if matches := of.GetTransportSocketMatches(); len(matches) > 0 {
		var mode *structpb.Struct
		for _, loc := range p.load(of).GetEndpoints() {
			for _, e := range loc.GetLbEndpoints() {
				if describe(e) == endpoint {
					mode = e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"]
				}
			}
		}
		for _, m := range matches {
			if hasFields(mode, m.GetMatch()) {
				socket = m.GetTransportSocket()
				break
			}
		}
	}
	return upstream(socket)
}

// upstream reads a transport socket.
func upstream(s *corev3.TransportSocket) (*tlsv3.UpstreamTlsContext, error) {
	if s == nil {
		return nil, nil
	}
	m, err := s.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case *rawv3.RawBuffer:
		return nil, nil
	case *tlsv3.UpstreamTlsContext:
		return m, nil
	case *proxyprotocolv3.ProxyProtocolUpstreamTransport:
		return nil, errors.New("cannot simulate a server that reads the PROXY protocol")
	}
	return nil, fmt.Errorf("cannot simulate transport socket %s", s.GetName())
}

// hasFields reports whether metadata has all fields of a match.
func hasFields(metadata, match *structpb.Struct) bool {
	for name, v := range match.GetFields() {
		if !proto.Equal(metadata.GetFields()[name], v) {
			return false
		}
	}
	return true
}

// load returns the endpoints of a cluster.
func (p *Proxy) load(c *clusterv3.Cluster) *endpointv3.ClusterLoadAssignment {
	if c.GetType() == clusterv3.Cluster_EDS {
		return p.endpoints[cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())]
	}
	return c.GetLoadAssignment()
}

// send records a connection as the proxy forwards it.
func (o *Outcome) send(c Call, decrypted bool) {
	if decrypted { // else the handshake reaches the server
		c.TLS, c.ServerName, c.ALPN, c.Certificate, c.Untrusted = false, "", nil, nil, false
	}
	o.sent = &c
}

// sendRequest records a request as a route forwards it, with the routes that the route is
// in, from the most specific on.
func (o *Outcome) sendRequest(m *hcmv3.HttpConnectionManager, a *routev3.RouteAction, r *routev3.Route, vh *routev3.VirtualHost, rc *routev3.RouteConfiguration, c Call) {
	from := c.From
	o.send(c, true)
	s := o.sent
	s.Headers = maps.Clone(c.Headers)
	s.offers = slices.ContainsFunc(m.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetName() == "meshlog.alpn" })
	if s.Token != nil {
		if len(s.Headers["authorization"]) == 0 {
			s.Token = nil // the filter that verifies tokens has removed it
		}
		delete(s.Headers, "authorization")
	}
	if m.GetUseRemoteAddress().GetValue() { // the router adds the address of its caller
		if from.IsValid() {
			s.Headers["x-forwarded-for"] = []string{strings.Join(append(slices.Clone(c.lines("x-forwarded-for")), from.String()), ",")}
		} else {
			s.unknown = append(s.unknown, "x-forwarded-for")
		}
	}
	path, query, found := strings.Cut(c.Path, "?")
	switch {
	case a.GetPrefixRewrite() != "":
		path = a.GetPrefixRewrite() + unmatched(r.GetMatch(), path)
	case a.GetRegexRewrite() != nil:
		path = substitute(a.GetRegexRewrite(), path)
	case a.GetPathRewritePolicy() != nil:
		o.unsaid = "path"
	}
	if s.Path = path; found {
		s.Path += "?" + query
	}
	switch {
	case a.GetHostRewriteLiteral() != "":
		s.Host = a.GetHostRewriteLiteral()
	case a.GetHostRewriteSpecifier() != nil:
		o.unsaid = "host"
	}
	s.change(r.GetRequestHeadersToAdd(), r.GetRequestHeadersToRemove())
	s.change(vh.GetRequestHeadersToAdd(), vh.GetRequestHeadersToRemove())
	s.change(rc.GetRequestHeadersToAdd(), rc.GetRequestHeadersToRemove())
	for _, w := range a.GetWeightedClusters().GetClusters() { // which of them is chosen is not known
		for _, h := range w.GetRequestHeadersToAdd() {
			s.unknown = append(s.unknown, strings.ToLower(h.GetHeader().GetKey()))
		}
		for _, name := range w.GetRequestHeadersToRemove() {
			s.unknown = append(s.unknown, strings.ToLower(name))
		}
		if w.GetHostRewriteLiteral() != "" {
			o.unsaid = "host"
		}
	}
}

// change adds and removes headers as a route does. A value with variables is not known.
func (c *Call) change(add []*corev3.HeaderValueOption, remove []string) {
	for _, name := range remove {
		delete(c.Headers, strings.ToLower(name))
	}
	for _, h := range add {
		name, value := strings.ToLower(h.GetHeader().GetKey()), h.GetHeader().GetValue()
		old := c.Headers[name]
		switch how := h.GetAppendAction(); {
		case strings.Contains(value, "%"):
			c.unknown = append(c.unknown, name)
		case how == corev3.HeaderValueOption_ADD_IF_ABSENT && len(old) > 0, how == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS && len(old) == 0:
		case how == corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD && !h.GetAppend().GetValue() && h.GetAppend() != nil: //nolint:staticcheck // deprecated, and Envoy knows it
			c.Headers[name] = []string{value}
		case how == corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
			c.Headers[name] = append(slices.Clone(old), value)
		default:
			c.Headers[name] = []string{value}
		}
	}
}
