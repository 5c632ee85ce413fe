package listener

import (
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/traffic"
)

// The names by which clients of the mesh say in their handshakes what they speak (LSN-9),
// and those that the inspector of plain HTTP gives.
var (
	peerHTTP  = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	peerTCP   = []string{"istio-peer-exchange", "istio"}
	plainHTTP = []string{"http/1.0", "http/1.1", "h2c"}
)

const (
	rawBuffer = "raw_buffer"
	tlsSocket = "tls"
)

// sniffs reports whether the chains of a protocol are chosen by what the first bytes say.
func sniffs(p index.Protocol) bool { return p == index.Sniffed }

// inboundChains is the part for the filter chains of one port of a workload, or of all
// that have no chains of their own (LSN-3, LSN-4).
type inboundChains struct {
	listener, name, cluster string
	port                    uint32 // that a chain demands; 0: any
	number                  uint32 // of the port, also where chains need not demand it
	ingress                 string // as in index.LDSClass
	protocol                index.Protocol
	mode                    index.PeerMode
	certificates            proxy.Certificates
	policies                policy.Connections
}

// chainKind is a chain of MTLS-1 to MTLS-4: which connections it takes, and what reads
// them.
type chainKind struct {
	transport string
	alpn      []string
	decrypts  bool // as a server of the mesh
	requests  bool
}

// chainKinds returns the chains of a mode and a protocol.
func chainKinds(mode index.PeerMode, protocol index.Protocol) []chainKind {
	http, auto := protocol.IsHTTP(), sniffs(protocol)
	both := append(append([]string(nil), peerTCP...), peerHTTP...)
	switch {
	case mode == index.PeerStrict && auto:
		return []chainKind{{tlsSocket, peerHTTP, true, true}, {tlsSocket, nil, true, false}}
	case mode == index.PeerStrict:
		return []chainKind{{tlsSocket, nil, true, http}}
	case mode == index.PeerDisable && auto:
		return []chainKind{{rawBuffer, plainHTTP, false, true}, {rawBuffer, nil, false, false}}
	case mode == index.PeerDisable:
		return []chainKind{{rawBuffer, nil, false, http}}
	case auto:
		return []chainKind{
			{tlsSocket, peerHTTP, true, true}, {rawBuffer, plainHTTP, false, true}, {tlsSocket, peerTCP, true, false},
			{rawBuffer, nil, false, false}, {tlsSocket, nil, false, false},
		}
	case http:
		return []chainKind{{tlsSocket, both, true, true}, {rawBuffer, nil, false, true}}
	}
	return []chainKind{{tlsSocket, both, true, false}, {tlsSocket, nil, false, false}, {rawBuffer, nil, false, false}}
}

func (c inboundChains) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	var all []*listenerv3.FilterChain
	in := r.Ingress(c.ingress, c.number)
	if in.TLS != nil && c.mode == index.PeerDisable {
		return chains(c.listener, c.ending(r, in)), nil
	}
	kinds := chainKinds(c.mode, c.protocol)
	if c.name == virtualInbound && c.mode == index.PeerDisable { // TLS is looked for on ports that no service names
		kinds = append(kinds, chainKind{transport: tlsSocket})
	}
	for _, k := range kinds {
		if k.decrypts && c.certificates == (proxy.Certificates{}) {
			continue // MTLS-16
		}
		all = append(all, c.chain(r, k, in))
	}
	if len(all) == 0 { // without a chain of its own, connections to the port would find those for any port
		all = append(all, &listenerv3.FilterChain{Name: c.name, FilterChainMatch: c.match(chainKind{}), Filters: []*listenerv3.Filter{forward(piece.BlackHoleCluster)}})
	}
	for _, chain := range all {
		c.restrict(chain, in)
	}
	return chains(c.listener, all...), c.problems(in)
}

// restrict has a chain take only connections to the address that an ingress listener binds.
// A listener of its own has that address.
func (c inboundChains) restrict(chain *listenerv3.FilterChain, in index.Ingress) {
	if in.Bind != "" && c.port != 0 {
		chain.FilterChainMatch.PrefixRanges = ranges([]string{in.Bind})
	}
}

// problems reports TLS that cannot end at a port: clients of the mesh bring that of the mesh.
func (c inboundChains) problems(in index.Ingress) []problem.Diagnostic {
	if in.TLS == nil {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "conflict", Key: in.Key, Field: in.Field + ".tls",
		Reason: fmt.Sprintf("port %d of some workloads takes mutual TLS of the mesh, so TLS for callers from outside cannot end there", c.number),
		Advice: "write a PeerAuthentication with mode DISABLE for the port",
		Effect: "connections in other TLS are forwarded to the workload as they are, or closed with mode STRICT",
	}}
}

// ending returns the chain of a port at which TLS of callers from outside the mesh ends
// (SC-5). What is not encrypted finds no chain, and is closed.
func (c inboundChains) ending(r *index.Reader, in index.Ingress) *listenerv3.FilterChain {
	s := gateway.Server{Key: in.Key, Field: in.Field, TLS: in.TLS}
	requests := c.protocol == index.HTTPS
	if c.protocol = index.TCP; requests {
		c.protocol, s.Routes = index.HTTP, c.cluster // so that it offers HTTP
	}
	chain := c.chain(r, chainKind{transport: tlsSocket, requests: requests}, in)
	tls := &chooser{mesh: r.Mesh(), trust: r.Trust(), port: &gateway.Port{}}
	tls.decrypt(&s, chain)
	c.restrict(chain, in)
	return chain
}

func (c inboundChains) match(k chainKind) *listenerv3.FilterChainMatch {
	m := &listenerv3.FilterChainMatch{TransportProtocol: k.transport, ApplicationProtocols: k.alpn}
	if c.port != 0 {
		m.DestinationPort = wrapperspb.UInt32(c.port)
	}
	return m
}

func (c inboundChains) chain(r *index.Reader, k chainKind, in index.Ingress) *listenerv3.FilterChain {
	chain := &listenerv3.FilterChain{Name: c.chainName(k), FilterChainMatch: c.match(k)}
	if k.decrypts {
		chain.TransportSocket = &corev3.TransportSocket{
			Name:       "envoy.transport_sockets.tls",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(peerContext(r, c.certificates))},
		}
		chain.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
		chain.Filters = ofOneDomain(r.Trust())
	}
	if k.requests {
		chain.Filters = append(chain.Filters, c.manager(r, k))
		return chain
	}
	to := &tcpv3.TcpProxy{StatPrefix: c.cluster, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: c.cluster}}
	if k.decrypts {
		to.MaxDownstreamConnectionDuration = limit(r.MaxConnectionDuration())
	}
	if in.Pool != nil {
		shape(to, traffic.Policy{Pool: in.Pool}) // SC-6
	}
	// That a provider cannot decide about connections is no problem to report: every
	// workload has chains for them, also one that only gets requests.
	policies, _ := c.policies.Filters(r)
	chain.Filters = append(append(chain.Filters, policies...), networkFilter(tcpProxy, to))
	return chain
}

// chainName returns Istio's name of a chain: those for any port say what they read.
func (c inboundChains) chainName(k chainKind) string {
	if c.name == virtualInbound && k.requests {
		return virtualInbound + "-catchall-http"
	}
	return c.name
}

// manager returns the filter that reads requests for the workload. Its routes are in it,
// because they never change.
func (c inboundChains) manager(r *index.Reader, k chainKind) *listenerv3.Filter {
	return manager(r.Mesh(), "inbound_"+c.name, "", filters(c.protocol == index.GRPCWeb, false, needs{}), func(m *hcmv3.HttpConnectionManager) {
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: c.cluster, ValidateClusters: wrapperspb.Bool(false),
			VirtualHosts: []*routev3.VirtualHost{{
				Name: "inbound", Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Name:  "default",
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: c.cluster},
						Timeout:           durationpb.New(0),
						MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(0), GrpcTimeoutHeaderMax: durationpb.New(0)},
					}},
				}},
			}},
		}}
		enforce(m, r.Mesh())
		m.ServerHeaderTransformation = hcmv3.HttpConnectionManager_PASS_THROUGH
		// A header about the client's certificate counts only from a client of the mesh;
		// Envoy removes one that a plaintext client sends. It gets the URI, which is the
		// client's identity, and no other name of the certificate, which an application could
		// take for one (MTLS-10).
		m.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
		m.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
		if k.decrypts {
			m.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxConnectionDuration: limit(r.MaxConnectionDuration())}
		}
	})
}

// limit returns how long a connection may last whose client proved who it is: one that
// stands outlives a certificate that was replaced or revoked (KEY-12). nil: for ever.
func limit(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// peerContext returns the TLS settings of a server of the mesh: the client must show an
// identity of one of its trust domains (MTLS-6).
func peerContext(r *index.Reader, from proxy.Certificates) *tlsv3.DownstreamTlsContext {
	out := meshServer(r.Mesh(), from, r.Trust())
	out.CommonTlsContext.AlpnProtocols = []string{"h2", "http/1.1"}
	return out
}
