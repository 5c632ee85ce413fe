package row

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	forwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	directv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/direct_response/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	sniv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// open are the types of filters and of their settings that protect nothing. Every
// other one counts as security, also one that this build does not know.
var open = func(all ...proto.Message) map[string]bool {
	urls := map[string]bool{}
	for _, m := range all {
		urls["type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName())] = true
	}
	return urls
}(
	&faultv3.HTTPFault{}, &bufferv3.Buffer{}, &bufferv3.BufferPerRoute{}, &compressorv3.Compressor{}, &compressorv3.CompressorPerRoute{},
	&grpcwebv3.GrpcWeb{}, &routerv3.Router{}, &httpinspectorv3.HttpInspector{}, &tlsinspectorv3.TlsInspector{}, &originaldstv3.OriginalDst{},
	&directv3.Config{}, &tcpv3.TcpProxy{}, &forwardv3.FilterConfig{}, &sniv3.FilterConfig{}, &sessionv3.StatefulSession{}, &sessionv3.StatefulSessionPerRoute{},
)

// security is the set of settings with which a message protects something, each
// with the place where it applies.
type security map[string]struct{}

// in reports whether o has every setting of s, so that it is not more open.
func (s security) in(o security) bool {
	for setting := range s {
		if _, ok := o[setting]; !ok {
			return false
		}
	}
	return true
}

func (s security) add(place, setting string) { s[place+"\x00"+setting] = struct{}{} }

func (s security) message(place string, m proto.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a message that was decoded cannot fail to marshal: %v", err))
	}
	s.add(place, string(m.ProtoReflect().Descriptor().FullName())+" "+string(b))
}

// config adds the settings in a, unless they protect nothing.
func (s security) config(place string, a *anypb.Any) {
	if !open[a.GetTypeUrl()] {
		s.message(place, a)
	}
}

func (s security) configs(place string, all map[string]*anypb.Any) {
	for name, a := range all {
		s.config(place+" "+name, a)
	}
}

// of adds the settings of a resource, a virtual host or a filter chain.
func (s security) of(place string, m proto.Message) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		if m.GetTransportSocket() != nil {
			s.message("socket", m.GetTransportSocket())
		}
		for _, one := range m.GetTransportSocketMatches() {
			s.message("socket match", one)
		}
		for name, a := range m.GetTypedExtensionProtocolOptions() {
			s.protocol(name, a)
		}
	case *listenerv3.Listener:
		for _, f := range m.GetListenerFilters() {
			s.config("listener filter", f.GetTypedConfig())
		}
		for _, c := range m.GetFilterChains() {
			s.of(string(marshal(c.GetFilterChainMatch())), c)
		}
		if c := m.GetDefaultFilterChain(); c != nil {
			s.of("default", c)
		}
	case *listenerv3.FilterChain:
		if m.GetTransportSocket() != nil {
			s.message(place, m.GetTransportSocket())
		}
		for _, f := range m.GetFilters() {
			s.filter(place, f)
		}
	case *routev3.RouteConfiguration:
		s.configs("routes", m.GetTypedPerFilterConfig())
		for _, h := range m.GetVirtualHosts() {
			for _, domain := range h.GetDomains() {
				s.of(domain, h)
			}
		}
	case *routev3.VirtualHost:
		s.virtualHost(place, m)
	}
}

// filter adds the settings of a network filter.
func (s security) filter(place string, f *listenerv3.Filter) {
	m := new(hcmv3.HttpConnectionManager)
	if a := f.GetTypedConfig(); a == nil || !a.MessageIs(m) || a.UnmarshalTo(m) != nil {
		s.config(place, a)
		return
	}
	for _, h := range m.GetHttpFilters() {
		if h.GetDisabled() || h.GetTypedConfig() == nil { // off unless a route says otherwise, or found elsewhere
			s.message(place, h)
			continue
		}
		s.config(place, h.GetTypedConfig())
	}
	if routes := m.GetRouteConfig(); routes != nil {
		s.of(place, routes)
	}
	// What the manager believes about the client, and how it reads paths.
	s.message(place, &hcmv3.HttpConnectionManager{
		ForwardClientCertDetails: m.GetForwardClientCertDetails(), SetCurrentClientCertDetails: m.GetSetCurrentClientCertDetails(),
		UseRemoteAddress: m.GetUseRemoteAddress(), XffNumTrustedHops: m.GetXffNumTrustedHops(), InternalAddressConfig: m.GetInternalAddressConfig(),
		OriginalIpDetectionExtensions: m.GetOriginalIpDetectionExtensions(),
		NormalizePath:                 m.GetNormalizePath(), MergeSlashes: m.GetMergeSlashes(), PathWithEscapedSlashesAction: m.GetPathWithEscapedSlashesAction(),
	})
}

// protocol adds the settings with which a cluster checks who answers, and its
// filters.
func (s security) protocol(place string, a *anypb.Any) {
	m := new(httpv3.HttpProtocolOptions)
	if !a.MessageIs(m) || a.UnmarshalTo(m) != nil {
		return // how connections are made
	}
	if o := m.GetUpstreamHttpProtocolOptions(); o != nil {
		s.message(place, o)
	}
	for _, f := range m.GetHttpFilters() {
		s.message(place, f)
	}
}

func (s security) virtualHost(place string, h *routev3.VirtualHost) {
	if h.GetRequireTls() != routev3.VirtualHost_NONE {
		s.add(place, h.GetRequireTls().String())
	}
	s.configs(place, h.GetTypedPerFilterConfig())
	for _, r := range h.GetRoutes() {
		at := place + " " + string(marshal(r.GetMatch()))
		s.configs(at, r.GetTypedPerFilterConfig())
		for _, c := range r.GetRoute().GetWeightedClusters().GetClusters() {
			s.configs(at+" "+c.GetName(), c.GetTypedPerFilterConfig())
		}
	}
}

func securityOf(m proto.Message) security {
	s := security{}
	s.of("", m)
	return s
}
