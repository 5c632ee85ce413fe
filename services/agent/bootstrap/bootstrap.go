// Package bootstrap generates the bootstrap of an Envoy that an agent starts (AGT-1): its
// node in Istio's format, incremental ADS to the frontends, and the cluster by which it
// asks the agent for its certificate.
//
// It is pure.
package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/re2"
)

// proxySDSCluster is the cluster of the agent's socket. Its name is Istio's, and in the
// node's metadata, so that frontends refer to it (SDS-3).
const proxySDSCluster = "sds-grpc"

// frontends is the cluster of the frontends.
const frontends = "meshlog"

// Names of the secrets that the agent serves.
const (
	pair  = "default"
	roots = "ROOTCA"
)

// Config holds the inputs of a bootstrap.
type Config struct {
	Node *corev3.Node
	// XDS are the addresses of the frontends, HOST:PORT.
	XDS []string
	// Plaintext connects to the frontends without TLS.
	Plaintext bool
	// ServerName is the name in the frontends' certificate.
	ServerName string
	// XDSRoots has the CAs of the frontends' certificate, in PEM; empty: the mesh's.
	XDSRoots string
	// Socket is the path of the agent's socket.
	Socket string
	// Admin is the address of Envoy's admin interface, HOST:PORT.
	Admin string
}

// Build returns the bootstrap as JSON. Equal configurations give equal bytes.
func (c Config) Build() ([]byte, error) {
	admin, err := address(c.Admin)
	if err != nil {
		return nil, err
	}
	xds, err := c.frontends()
	if err != nil {
		return nil, err
	}
	sds := cluster(proxySDSCluster, clusterv3.Cluster_STATIC, &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: c.Socket}}})
	runtime, err := structpb.NewStruct(map[string]any{"re2.max_program_size.error_level": re2.Raised})
	if err != nil {
		return nil, err
	}
	ads := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0), // a proxy with nothing to serve is not ready
	}
	b := &bootstrapv3.Bootstrap{
		Node:  c.Node,
		Admin: &bootstrapv3.Admin{Address: admin},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
			{Name: "meshlog", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: runtime}},
			{Name: "admin", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}},
		}},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{service(frontends)},
			},
			CdsConfig: ads, LdsConfig: ads,
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{xds, sds}},
	}
	// protojson varies its spaces on purpose; the bytes are compared to find out
	// whether Envoy needs a restart.
	text, err := protojson.MarshalOptions{}.Marshal(b)
	if err != nil {
		return nil, err
	}
	return compact(text)
}

func service(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}}}
}

func (c Config) frontends() (*clusterv3.Cluster, error) {
	if len(c.XDS) == 0 {
		return nil, errors.New("no address of a frontend")
	}
	kind := clusterv3.Cluster_STATIC
	var to []*corev3.Address
	for _, a := range c.XDS {
		parsed, err := address(a)
		if err != nil {
			return nil, err
		}
		if _, err := netip.ParseAddr(parsed.GetSocketAddress().GetAddress()); err != nil {
			kind = clusterv3.Cluster_STRICT_DNS
		}
		to = append(to, parsed)
	}
	cl := cluster(frontends, kind, to...)
	if c.Plaintext {
		return cl, nil
	}
	validation := &tlsv3.CertificateValidationContext{}
	if c.ServerName != "" {
		san := tlsv3.SubjectAltNameMatcher_DNS
		if _, err := netip.ParseAddr(c.ServerName); err == nil {
			san = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
		}
		validation.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{
			SanType: san, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: c.ServerName}},
		}}
	}
	common := &tlsv3.CommonTlsContext{
		TlsParams:     &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2},
		AlpnProtocols: []string{"h2"},
		// Envoy waits for its certificate as long as it takes: a frontend would refuse a
		// connection without one, or serve it as a proxy without identity (S24, S43).
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{reference(pair)},
	}
	if c.XDSRoots != "" {
		validation.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: c.XDSRoots}}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: validation, ValidationContextSdsSecretConfig: reference(roots),
			},
		}
	}
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if _, err := netip.ParseAddr(c.ServerName); err != nil {
		context.Sni = c.ServerName
	}
	packed, err := anypb.New(context)
	if err != nil {
		return nil, err
	}
	cl.TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed},
	}
	return cl, nil
}

// reference refers to a secret of the agent.
func reference(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{service(proxySDSCluster)},
		}},
	}}
}

// cluster returns a cluster that speaks HTTP/2.
func cluster(name string, kind clusterv3.Cluster_DiscoveryType, to ...*corev3.Address) *clusterv3.Cluster {
	options, err := anypb.New(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
				// A frontend whose machine lost power is noticed within 35 s.
				ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: durationpb.New(30 * time.Second), Timeout: durationpb.New(5 * time.Second)},
			}},
		}},
	})
	if err != nil {
		panic(err) // the message is a constant
	}
	endpoints := &endpointv3.LocalityLbEndpoints{}
	for _, a := range to {
		endpoints.LbEndpoints = append(endpoints.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}},
		})
	}
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: kind}, ConnectTimeout: durationpb.New(time.Second),
		LoadAssignment:                &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{endpoints}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},

		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests: wrapperspb.UInt32(100_000), // one stream for each secret
		}}},
	}
}

func address(hostport string) (*corev3.Address, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("%q is not HOST:PORT", hostport)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" {
		return nil, fmt.Errorf("%q is not HOST:PORT", hostport)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}, nil
}
