package validate

import (
	"maps"
	"math"
	"regexp/syntax"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// listener checks the Listener of a target (api_listener), or of a gRPC server.
func (g grpc) listener(at *fieldPath, l *listenerv3.Listener) {
	if api := l.GetApiListener(); api != nil {
		g.manager(at.field("api_listener.api_listener"), api.GetApiListener(), false)
		return
	}
	g.errorIf(len(l.GetListenerFilters()) > 0, at.field("listener_filters"), removeIt, neverSet)
	g.errorIf(l.GetUseOriginalDst().GetValue(), at.field("use_original_dst"), removeIt, neverSet)
	g.errorIf(l.GetAddress().GetSocketAddress() == nil, at.field("address.socket_address"),
		"write it for a gRPC server; the Listener of a gRPC client has an api_listener", isMissing)
	g.errorIf(len(l.GetFilterChains()) == 0 && l.GetDefaultFilterChain() == nil, at.field("filter_chains"), "write one", isEmpty)
	for i, c := range l.GetFilterChains() {
		g.chain(at.field("filter_chains").item(i), c)
	}
	if c := l.GetDefaultFilterChain(); c != nil {
		g.chain(at.field("default_filter_chain"), c)
	}
}

func (g grpc) chain(at *fieldPath, c *listenerv3.FilterChain) {
	names := map[string]bool{}
	for i, f := range c.GetFilters() {
		at := at.field("filters").item(i)
		g.filterName(at.field("name"), f.GetName(), names)
		g.manager(at.field("typed_config"), f.GetTypedConfig(), true)
	}
	g.errorIf(len(c.GetFilters()) == 0, at.field("filters"), "write an HttpConnectionManager", isEmpty)
	g.downstreamTLS(at.field("transport_socket"), c.GetTransportSocket())
}

func (g grpc) filterName(at *fieldPath, name string, seen map[string]bool) {
	g.errorIf(name == "", at, "give it a name", isEmpty)
	g.errorIf(!first(seen, name), at, "give each filter its own name", isTwice, name)
}

func (g grpc) manager(at *fieldPath, config *anypb.Any, server bool) {
	m := new(hcmv3.HttpConnectionManager)
	if err := config.UnmarshalTo(m); err != nil {
		g.errorf(at, "use an HttpConnectionManager, which is all that gRPC clients know", "is another type, or missing")
		return
	}
	g.errorIf(m.GetXffNumTrustedHops() != 0, at.field("xff_num_trusted_hops"), removeIt, neverSet)
	g.errorIf(len(m.GetOriginalIpDetectionExtensions()) > 0, at.field("original_ip_detection_extensions"), removeIt, neverSet)
	switch m.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_Rds:
		g.errorIf(m.GetRds().GetRouteConfigName() == "", at.field("rds.route_config_name"), "name a RouteConfiguration", isEmpty)
		if server {
			g.errorIf(m.GetRds().GetConfigSource().GetAds() == nil, at.field("rds.config_source"), "write {ads: {}}", "is another source, or none")
		} else {
			g.source(at.field("rds.config_source"), m.GetRds().GetConfigSource())
		}
	case *hcmv3.HttpConnectionManager_RouteConfig:
		g.routes(at.field("route_config"), m.GetRouteConfig())
	default:
		g.errorf(at, "write rds or route_config", "has no routes that gRPC clients know")
	}
	g.filters(at.field("http_filters"), m.GetHttpFilters(), server)
}

// filters checks HTTP filters: those that are known, the router last.
func (g grpc) filters(at *fieldPath, all []*hcmv3.HttpFilter, server bool) {
	names, last := map[string]bool{}, -1
	known := make([]bool, len(all))
	for i, f := range all {
		at, config := at.item(i), f.GetTypedConfig()
		g.filterName(at.field("name"), f.GetName(), names)
		switch {
		case config.MessageIs((*routerv3.Router)(nil)):
		case !server && config.MessageIs((*faultv3.HTTPFault)(nil)):
		case server && config.MessageIs((*rbacv3.RBAC)(nil)):
			m := new(rbacv3.RBAC)
			if err := config.UnmarshalTo(m); err != nil {
				g.errorf(at.field("typed_config"), encodeAgain, "%v", err)
			}
			g.rbac(at.field("typed_config"), m)
		case f.GetIsOptional():
			g.unsupported(at, removeIt, "gRPC clients ignore it")
			continue
		default:
			g.errorf(at.field("typed_config"), "remove the filter, or set is_optional", wrongGRPC)
			continue
		}
		known[i], last = true, i
	}
	for i, f := range all {
		if known[i] && f.GetTypedConfig().MessageIs((*routerv3.Router)(nil)) != (i == last) {
			g.errorf(at.item(i), "put a router at the end, and only there", "the router must be the last filter, and no other")
		}
	}
	g.errorIf(last < 0, at, "add a router", "there is no filter that gRPC clients know")
}

func (g grpc) rbac(at *fieldPath, m *rbacv3.RBAC) {
	policies := m.GetRules().GetPolicies()
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		p := policies[name]
		g.errorIf(p.GetCondition() != nil || p.GetCheckedCondition() != nil, at.field("rules.policies").entry(name), "remove the condition", "gRPC servers refuse conditions")
	}
}

// overrides checks the settings of filters for a part of the routes.
func (g grpc) overrides(in *fieldPath, all map[string]*anypb.Any) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at, config, optional := in.field("typed_per_filter_config").entry(name), all[name], false
		if wrapper := new(routev3.FilterConfig); config.MessageIs(wrapper) {
			if err := config.UnmarshalTo(wrapper); err != nil {
				g.errorf(at, encodeAgain, "%v", err)
			}
			config, optional = wrapper.GetConfig(), wrapper.GetIsOptional()
		}
		switch {
		case config.MessageIs((*faultv3.HTTPFault)(nil)):
		case config.MessageIs((*rbacv3.RBACPerRoute)(nil)):
			m := new(rbacv3.RBACPerRoute)
			if err := config.UnmarshalTo(m); err != nil {
				g.errorf(at, encodeAgain, "%v", err)
			}
			g.errorIf(m.GetRbac() == nil, at.field("rbac"), "write rbac: {} to allow all requests", "is missing, which gRPC clients cannot read")
			g.rbac(at.field("rbac"), m.GetRbac())
		case config.MessageIs((*routerv3.Router)(nil)) || config.MessageIs((*rbacv3.RBAC)(nil)):
			g.errorf(at, removeIt, "gRPC clients take none for this filter")
		case !optional:
			g.errorf(at, "remove it, or wrap it in a FilterConfig with is_optional", wrongGRPC)
		}
	}
}

func (g grpc) routes(at *fieldPath, r *routev3.RouteConfiguration) {
	plugins := g.plugins(at.field("cluster_specifier_plugins"), r.GetClusterSpecifierPlugins())
	for i, h := range r.GetVirtualHosts() {
		at := at.field("virtual_hosts").item(i)
		for j, route := range h.GetRoutes() {
			g.route(at.field("routes").item(j), route, plugins)
		}
		g.retries(at.field("retry_policy"), h.GetRetryPolicy())
		g.overrides(at, h.GetTypedPerFilterConfig())
	}
}

func (g grpc) route(at *fieldPath, r *routev3.Route, plugins map[string]bool) {
	m := r.GetMatch()
	if m == nil {
		g.errorf(at.field("match"), "write one, such as {prefix: /}", isMissing)
		return
	}
	if len(m.GetQueryParameters()) > 0 {
		g.unsupported(at.field("match.query_parameters"), removeIt, ignoreRoute)
		return
	}
	g.match(at.field("match"), m)
	if a := r.GetRoute(); a != nil {
		g.action(at.field("route"), a, plugins)
	} else if r.GetNonForwardingAction() == nil {
		g.unsupported(at, "use route", "has an action that gRPC clients do not know: they fail the requests")
	}
	g.overrides(at, r.GetTypedPerFilterConfig())
}

func (g grpc) match(at *fieldPath, m *routev3.RouteMatch) {
	switch m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix, *routev3.RouteMatch_Path:
	case *routev3.RouteMatch_SafeRegex:
		g.regex(at.field("safe_regex"), m.GetSafeRegex())
	default:
		g.errorf(at, "use prefix, path or safe_regex", "has no path that gRPC clients know")
	}
	if len(m.GetDynamicMetadata()) > 0 {
		g.warnf(at.field("dynamic_metadata"), removeIt, "gRPC clients do not look at it: the route matches more")
	}
	for i, h := range m.GetHeaders() {
		g.header(at.field("headers").item(i), h)
	}
}

//nolint:staticcheck // gRPC clients still read the deprecated fields
func (g grpc) header(at *fieldPath, h *routev3.HeaderMatcher) {
	switch s := h.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_ExactMatch, *routev3.HeaderMatcher_RangeMatch, *routev3.HeaderMatcher_PresentMatch:
	case *routev3.HeaderMatcher_PrefixMatch:
		g.errorIf(s.PrefixMatch == "", at.field("prefix_match"), "write a text", isEmpty)
	case *routev3.HeaderMatcher_SuffixMatch:
		g.errorIf(s.SuffixMatch == "", at.field("suffix_match"), "write a text", isEmpty)
	case *routev3.HeaderMatcher_ContainsMatch:
		g.errorIf(s.ContainsMatch == "", at.field("contains_match"), "write a text", isEmpty)
	case *routev3.HeaderMatcher_SafeRegexMatch:
		g.regex(at.field("safe_regex_match"), s.SafeRegexMatch)
	case *routev3.HeaderMatcher_StringMatch:
		g.text(at.field("string_match"), s.StringMatch)
	default:
		g.errorf(at, "say what the header must be, such as present_match: true", "matches nothing that gRPC clients know")
	}
}

func (g grpc) text(at *fieldPath, m *matcherv3.StringMatcher) {
	empty := false
	switch s := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
	case *matcherv3.StringMatcher_Prefix:
		empty = s.Prefix == ""
	case *matcherv3.StringMatcher_Suffix:
		empty = s.Suffix == ""
	case *matcherv3.StringMatcher_Contains:
		empty = s.Contains == ""
	case *matcherv3.StringMatcher_SafeRegex:
		g.regex(at.field("safe_regex"), s.SafeRegex)
	default:
		g.errorf(at, "use exact, prefix, suffix, contains or safe_regex", "matches nothing that gRPC clients know")
	}
	g.errorIf(empty, at, "write a text", isEmpty)
}

func (g grpc) regex(at *fieldPath, r *matcherv3.RegexMatcher) {
	if _, err := syntax.Parse(r.GetRegex(), syntax.Perl); err != nil {
		g.errorf(at.field("regex"), useRE2, "%v", err)
	}
}

func (g grpc) action(at *fieldPath, a *routev3.RouteAction, plugins map[string]bool) {
	switch s := a.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
	case *routev3.RouteAction_WeightedClusters:
		g.weightedClusters(at.field("weighted_clusters"), s.WeightedClusters)
	case *routev3.RouteAction_ClusterSpecifierPlugin:
		known, there := plugins[s.ClusterSpecifierPlugin]
		at := at.field("cluster_specifier_plugin")
		g.errorIf(!there, at, "name one of cluster_specifier_plugins", "there is no plugin %q", s.ClusterSpecifierPlugin)
		if there && !known {
			g.unsupported(at, "use another cluster", ignoreRoute)
		}
	default:
		g.unsupported(at, "use cluster, weighted_clusters or cluster_specifier_plugin", ignoreRoute)
	}
	for i, p := range a.GetHashPolicy() {
		if r := p.GetHeader().GetRegexRewrite(); r != nil {
			g.regex(at.field("hash_policy").item(i).field("header.regex_rewrite.pattern"), r.GetPattern())
		}
	}
	g.retries(at.field("retry_policy"), a.GetRetryPolicy())
}

func (g grpc) weightedClusters(at *fieldPath, w *routev3.WeightedCluster) {
	var sum uint64
	for i, c := range w.GetClusters() {
		if c.GetWeight().GetValue() == 0 {
			continue // clients ignore all of it
		}
		sum += uint64(c.GetWeight().GetValue())
		g.overrides(at.field("clusters").item(i), c.GetTypedPerFilterConfig())
	}
	if sum == 0 || sum > math.MaxUint32 {
		g.errorf(at.field("clusters"), "give weights with a sum from 1 to 4294967295", tooHeavy, sum)
	}
}

func (g grpc) retries(at *fieldPath, p *routev3.RetryPolicy) {
	if n := p.GetNumRetries(); n != nil && n.GetValue() == 0 {
		g.errorf(at.field("num_retries"), "use 1 or more, or remove the policy", "is 0")
	}
	if b := p.GetRetryBackOff(); b != nil {
		g.errorIf(b.GetBaseInterval().AsDuration() <= 0, at.field("retry_back_off.base_interval"), "use more than 0s", "is missing, or not above 0s")
		g.errorIf(b.GetMaxInterval() != nil && b.GetMaxInterval().AsDuration() <= 0, at.field("retry_back_off.max_interval"), "use more than 0s", "is not above 0s")
	}
}

// plugins checks cluster specifier plugins. It returns their names: true for those
// that gRPC clients know.
func (g grpc) plugins(at *fieldPath, all []*routev3.ClusterSpecifierPlugin) map[string]bool {
	names := map[string]bool{}
	for i, p := range all {
		e, at := p.GetExtension(), at.item(i).field("extension.typed_config")
		known := e.GetTypedConfig().GetTypeUrl() == lookupType
		names[e.GetName()] = known
		switch {
		case known:
			g.lookup(at, e)
		case !p.GetIsOptional():
			g.errorf(at, "use "+lookupType+", or set is_optional", "%q %s", e.GetTypedConfig().GetTypeUrl(), wrongGRPC)
		}
	}
	return names
}
