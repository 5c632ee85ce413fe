package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// inbound is the part for the cluster of a port of a sidecar's own workload (LSN-11).
type inbound struct {
	index.InboundCluster
	loopback bool // the workload listens there
}

// inboundSource is the address from which a sidecar calls its own workload. Redirection
// leaves connections from it alone; without it, they would come back to the sidecar.
const inboundSource = "127.0.0.6"

func (p inbound) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := maker{mesh: r.Mesh()}
	c := &clusterv3.Cluster{Name: piece.InboundCluster(p.Port), ConnectTimeout: m.connectTimeout(nil)}
	if p.loopback || r.Mesh().GetInboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		setType(c, clusterv3.Cluster_STATIC)
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: socketAddress("127.0.0.1", p.Port),
			}}}},
		}}}
		limit(c, traffic.Policy{})
	} else {
		toWorkload(c)
	}
	switch p.Protocol {
	case index.HTTP2:
		c.TypedExtensionProtocolOptions = packOptions(asHTTP2(nil))
	case index.Sniffed:
		c.TypedExtensionProtocolOptions = packOptions(asCaller(nil))
	}
	return []piece.Piece{{Name: c.GetName(), Message: c}}, nil
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
