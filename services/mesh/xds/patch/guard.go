package patch

import (
	"maps"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	connectionlimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ratelimit/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/xds/piece"
)

// free are the fields on which what policies decide does not depend: all others of a listener
// in which policies decide are protected, also those that this build does not know.
var free = map[protoreflect.FullName][]protoreflect.Name{
	"envoy.config.listener.v3.Listener": {
		"stat_prefix", "access_log", "per_connection_buffer_limit_bytes", "metadata", "socket_options", "tcp_backlog_size", "drain_type",
		"connection_balance_config", "enable_reuse_port", "max_connections_to_accept_per_socket_event", "tcp_fast_open_queue_length", "freebind",
	},
	"envoy.config.listener.v3.FilterChain": {"metadata"},
	"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager": {
		"stat_prefix", "access_log", "access_log_options", "tracing", "stream_idle_timeout", "stream_flush_timeout", "request_timeout",
		"request_headers_timeout", "drain_timeout", "delayed_close_timeout", "common_http_protocol_options", "http_protocol_options",
		"http2_protocol_options", "http3_protocol_options", "server_name", "server_header_transformation", "max_request_headers_kb",
		"add_user_agent", "via", "generate_request_id", "preserve_external_request_id", "always_set_request_id_in_response",
		"request_id_extension", "local_reply_config", "proxy_100_continue", "add_proxy_protocol_connection_state",
	},
}

// harmless are the network filters that only refuse connections: one may stand before those
// that enforce policies.
var harmless = []proto.Message{new(localratelimitv3.LocalRateLimit), new(connectionlimitv3.ConnectionLimit), new(ratelimitv3.RateLimit), new(rbacv3.RBAC)}

// protected returns what of a piece policies and TLS of the mesh depend on, as text: equal texts
// protect alike. What a sidecar calls is its own affair (POL-17).
func (s *subject) protected(m proto.Message) string {
	if m == nil {
		if s.guarded() {
			return "removed"
		}
		return ""
	}
	switch m := m.(type) {
	case *listenerv3.Listener:
		if !s.guarded() {
			return ""
		}
		l := cloned(m)
		strip(l)
		for _, c := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
			if c != nil {
				stripChain(c)
			}
		}
		return string(marshal(l))
	case *routev3.RouteConfiguration:
		return overridden(m)
	}
	return ""
}

// guarded reports whether the piece is of a listener in which policies decide.
func (s *subject) guarded() bool {
	_, listener := s.base.(*listenerv3.Listener)
	return listener && s.context() != networking.EnvoyFilter_SIDECAR_OUTBOUND
}

func strip(m proto.Message) {
	r := m.ProtoReflect()
	for _, name := range free[r.Descriptor().FullName()] {
		if fd := r.Descriptor().Fields().ByName(name); fd != nil {
			r.Clear(fd)
		}
	}
}

// stripChain leaves the filters of a chain that enforce policies, those before them, and the
// protected fields.
func stripChain(c *listenerv3.FilterChain) {
	strip(c)
	last := -1
	for i, f := range c.GetFilters() {
		if decides(f) || f.GetName() == connectionManager {
			last = i
		}
	}
	var filters []*listenerv3.Filter
	for _, f := range c.GetFilters()[:last+1] {
		is := func(m proto.Message) bool { return f.GetTypedConfig().MessageIs(m) }
		switch {
		case f.GetName() == connectionManager:
			filters = append(filters, &listenerv3.Filter{Name: f.GetName(), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: stripManager(f.GetTypedConfig())}})
		case !decides(f) && slices.ContainsFunc(harmless, is):
		default:
			filters = append(filters, f)
		}
	}
	c.Filters = filters
}

func stripManager(a *anypb.Any) *anypb.Any {
	m := new(hcmv3.HttpConnectionManager)
	if a.UnmarshalTo(m) != nil {
		return a
	}
	strip(m)
	n := 0
	for i, f := range m.GetHttpFilters() {
		if strings.HasPrefix(f.GetName(), policySlots) {
			n = i + 1
		}
	}
	m.HttpFilters = m.GetHttpFilters()[:n]
	if c := m.GetRouteConfig(); c != nil { // its routes are the own affair of the workload
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: overridden(c)}}
	}
	return piece.Any(m)
}

// overridden returns the settings of routes for the filters that enforce policies.
func overridden(c *routev3.RouteConfiguration) string {
	var b strings.Builder
	add := func(place string, all map[string]*anypb.Any) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if strings.HasPrefix(name, policySlots) {
				b.WriteString(place + " " + name + " " + string(marshal(all[name])) + "\n")
			}
		}
	}
	add("", c.GetTypedPerFilterConfig())
	for _, h := range c.GetVirtualHosts() {
		add(h.GetName(), h.GetTypedPerFilterConfig())
		for _, r := range h.GetRoutes() {
			add(h.GetName()+" "+r.GetName(), r.GetTypedPerFilterConfig())
			for _, to := range r.GetRoute().GetWeightedClusters().GetClusters() {
				add(h.GetName()+" "+r.GetName()+" "+to.GetName(), to.GetTypedPerFilterConfig())
			}
		}
	}
	return b.String()
}
