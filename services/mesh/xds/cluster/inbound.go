package cluster

import (
	"net/netip"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// inbound is the part for the cluster of a port of a sidecar's own workload (LSN-11).
type inbound struct {
	index.InboundCluster
	loopback bool   // the workload listens there
	ingress  string // as in index.CDSClass
	address  string // the workload's, if a cluster has it
}

// inboundSource is the address from which a sidecar calls its own workload. Redirection
// leaves connections from it alone; without it, they would come back to the sidecar.
const inboundSource = "127.0.0.6"

func (p inbound) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m, in := maker{mesh: r.Mesh()}, r.Ingress(p.ingress, p.Port)
	policy := traffic.Policy{Pool: in.Pool} // SC-6
	c := &clusterv3.Cluster{Name: piece.InboundCluster(p.Port), ConnectTimeout: m.connectTimeout(in.Pool)}
	if at := p.endpoint(r.Mesh(), in); at != nil {
		setType(c, clusterv3.Cluster_STATIC)
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}}}},
		}}}
		limit(c, policy)
	} else {
		toWorkload(c)
		limit(c, policy)
		if port, is := in.OfInstance(); is {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(uint32(port)),
			}}
		}
	}
	if in.Pool.GetTcp().GetTcpKeepalive() != nil {
		keepAlive(c, r.Mesh(), in.Pool)
	}
	if o := p.httpOptions(in.Pool); o != nil {
		c.TypedExtensionProtocolOptions = packOptions(o)
	}
	return []piece.Piece{{Name: c.GetName(), Message: c}}, nil
}

// httpOptions returns how the workload is called; nil: in HTTP/1.1, or as it comes.
func (p inbound) httpOptions(pool *networking.ConnectionPoolSettings) *httpv3.HttpProtocolOptions {
	http := pool.GetHttp()
	var o *httpv3.HttpProtocolOptions
	switch {
	case p.Protocol == index.HTTP2, p.Protocol == index.HTTP && http.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		o = asHTTP2(http)
	case p.Protocol == index.Sniffed, p.Protocol == index.HTTP && http.GetUseClientProtocol():
		o = asCaller(http)
	case p.Protocol == index.HTTP && commonOptions(pool) != nil:
		o = asHTTP1()
	default:
		return nil
	}
	o.CommonHttpProtocolOptions = commonOptions(pool)
	return o
}

// endpoint returns the address at which the workload is called; nil: the one that the caller
// chose (SC-5, MC-4).
func (p inbound) endpoint(mesh *meshconfig.MeshConfig, in index.Ingress) *corev3.Address {
	if path, is := strings.CutPrefix(in.Endpoint, unixScheme); is {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	bound := p.loopback || in.Binds
	if port, is := in.OfInstance(); is {
		if bound && p.address != "" {
			return socketAddress(p.address, uint32(port))
		}
		return nil
	}
	if at, err := netip.ParseAddrPort(in.Endpoint); err == nil {
		return socketAddress(at.Addr().String(), uint32(at.Port()))
	}
	if bound || mesh.GetInboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		return socketAddress("127.0.0.1", p.Port)
	}
	return nil
}

// toWorkload makes c connect to the address of the workload that the caller chose.
func toWorkload(c *clusterv3.Cluster) {
	setType(c, clusterv3.Cluster_ORIGINAL_DST)
	balance(c, traffic.Policy{})
	limit(c, traffic.Policy{})
	c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: &corev3.SocketAddress{
		Address: inboundSource, PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}
}

func socketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}
