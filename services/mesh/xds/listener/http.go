package listener

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	statevaluev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/route"
)

// requests is the part for a sidecar's filter chain for HTTP (LSN-5, LSN-7).
type requests struct {
	listener string
	routes   string
	grpcWeb  bool
	// others: the listener also has chains for what is not HTTP.
	others bool
	alpn   bool // requests may offer another protocol than connections
	needs
}

func (q requests) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	c := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{manager(r.Mesh(), "outbound_"+q.listener, q.routes, filters(q.grpcWeb, q.alpn, q.needs.with(r.Mesh())), nil)}}
	if q.others {
		c.FilterChainMatch = &listenerv3.FilterChainMatch{
			TransportProtocol: "raw_buffer", ApplicationProtocols: []string{"http/1.1", "h2c"},
		}
	}
	return chains(q.listener, c), nil
}

func chains(listener string, all ...*listenerv3.FilterChain) []piece.Piece {
	if len(all) == 0 {
		return nil
	}
	return []piece.Piece{{Name: listener, Message: &listenerv3.Listener{FilterChains: all}, Partial: true}}
}

// manager returns the network filter that reads requests (LSN-14); edge changes
// it for routers.
func manager(mesh *meshconfig.MeshConfig, stats, routes string, filters []*hcmv3.HttpFilter, edge func(*hcmv3.HttpConnectionManager)) *listenerv3.Filter {
	source := piece.FromADS()
	source.InitialFetchTimeout = durationpb.New(0) // wait for the routes, however long
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: stats,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{RouteConfigName: routes, ConfigSource: source},
		},
		HttpFilters:       filters,
		StreamIdleTimeout: durationpb.New(0),
		Proxy_100Continue: true,
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}}, // WebSocket is always allowed (VSA-16)
	}
	normalize(m, mesh.GetPathNormalization().GetNormalization())
	if edge != nil {
		edge(m)
	}
	return networkFilter(requestsManager, m)
}

// normalize sets how paths are rewritten before they are matched (MC-9).
func normalize(m *hcmv3.HttpConnectionManager, how meshconfig.MeshConfig_ProxyPathNormalization_NormalizationType) {
	m.NormalizePath = wrapperspb.Bool(how != meshconfig.MeshConfig_ProxyPathNormalization_NONE)
	switch how {
	case meshconfig.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		m.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
		m.MergeSlashes = true
	case meshconfig.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		m.MergeSlashes = true
	}
}

// enforce lets policies decide about requests first. Without a setting, slashes are merged
// where they do: as Istio has it, //admin would pass DENY /admin (POL-6).
func enforce(m *hcmv3.HttpConnectionManager, mesh *meshconfig.MeshConfig) {
	m.HttpFilters = append(policy.Slots(), m.GetHttpFilters()...)
	if mesh.GetPathNormalization().GetNormalization() == meshconfig.MeshConfig_ProxyPathNormalization_DEFAULT {
		m.MergeSlashes = true
	}
}

// filters returns the HTTP filters of outbound requests in their order (LSN-15).
func filters(grpcWeb, alpn bool, more needs) []*hcmv3.HttpFilter {
	all := []*hcmv3.HttpFilter{
		httpFilter(route.FaultFilter, &faultv3.HTTPFault{}),
		httpFilter(route.CORSFilter, &corsv3.Cors{}),
		httpFilter(routerFilter, &routerv3.Router{}),
	}
	all = more.addTo(all)
	if alpn {
		all = slices.Insert(all, 0, httpFilter("meshlog.alpn", offeredProtocols))
	}
	if grpcWeb {
		return slices.Insert(all, 0, httpFilter("envoy.filters.http.grpc_web", &grpcwebv3.GrpcWeb{}))
	}
	return all
}

const (
	requestsManager = "envoy.filters.network.http_connection_manager"
	routerFilter    = "envoy.filters.http.router"
)

// offers reports whether requests may go to clusters that offer another protocol for them
// than for connections.
func offers(r *index.Reader, from proxy.Certificates) bool {
	return from != (proxy.Certificates{}) && r.MutualTLS()
}

// offeredProtocols makes Envoy offer by ALPN, for a request, what the metadata of its cluster
// says (MTLS-7). It does what Istio's own filter istio.alpn does, which stock Envoys lack. A
// cluster without that metadata, such as one for a server outside of the mesh, offers what
// its transport socket says.
var offeredProtocols = &filterstatev3.Config{OnRequestHeaders: []*statevaluev3.FilterStateValue{{
	Key: &statevaluev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
	Value: &statevaluev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: "%METADATA(CLUSTER:" + piece.ALPNMetadata + ":" + piece.ALPNKey + ")%"},
		}},
		OmitEmptyValues: true,
	}},
	SharedWithUpstream: statevaluev3.FilterStateValue_ONCE,
	SkipIfEmpty:        true,
}}}

func httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(config)}}
}

func networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(config)}}
}

// proxied is the part for the listener to which callers send requests as to a
// proxy (LSN-13).
type proxied struct {
	port uint32
	alpn bool // as in requests
	needs
}

func (p proxied) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	name := listenerName(loopback, p.port)
	absolute := func(m *hcmv3.HttpConnectionManager) {
		m.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	}
	return []piece.Piece{{Name: name, Message: &listenerv3.Listener{
		Name: name, Address: socket(loopback, p.port), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{manager(r.Mesh(), "outbound_"+name, route.ForProxying, filters(false, p.alpn, p.needs.with(r.Mesh())), absolute)},
		}},
	}}}, nil
}
