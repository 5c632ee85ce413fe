package simulate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// http follows a request: policies decide about it before its route acts.
func (p *Proxy) http(m *hcmv3.HttpConnectionManager, c Call, policies *policies, o *Outcome) {
	routes := m.GetRouteConfig()
	name := m.GetRds().GetRouteConfigName()
	if name != "" {
		routes = p.routes[name]
	}
	path, ok := normalize(m, c.Path)
	if !ok {
		o.note("the path %q is not one that Envoy takes", c.Path)
		o.Status = 400
		return
	}
	c.Path = path
	c.Headers = withToken(c)
	policies.request.Unknown = slices.Clone(c.unknown)
	if forwarded(m, c, policies) {
		policies.request.Unknown = append(policies.request.Unknown, clientCert)
	} else if m.GetForwardClientCertDetails() != hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY {
		delete(c.Headers, clientCert)
	}
	o.RouteConfiguration = routes.GetName()
	host := strings.ToLower(c.Host)
	if routes.GetIgnorePortInHostMatching() {
		host = withoutPort(host)
	}
	vh := virtualHost(routes, host)
	o.VirtualHost = vh.GetName()
	route := p.httpFilters(m, c, policies, vh)
	o.Route = route.GetName()
	switch {
	case policies.ended():
	case routes == nil:
		o.note("RouteConfiguration %q is missing", name)
		o.Status = 404
	case vh == nil:
		o.note("no virtual host for %q", c.Host)
		o.Status = 404
	case vh.GetRequireTls() != routev3.VirtualHost_NONE && !policies.request.TLS:
		o.Status, o.Location = 301, "https://"+c.Host+c.Path
	case route == nil:
		o.note("no route matches")
		o.Status = 404
	default:
		if a := route.GetRoute(); a != nil {
			o.sendRequest(m, a, route, vh, routes, c)
		}
		p.act(route, c, o)
	}
}

// firstRoute returns the first route of a virtual host that matches.
func firstRoute(vh *routev3.VirtualHost, c Call, metadata map[string]map[string]any) *routev3.Route {
	if vh.GetRequireTls() != routev3.VirtualHost_NONE && !c.TLS {
		return nil
	}
	for _, r := range vh.GetRoutes() {
		if matchRoute(r.GetMatch(), c, metadata) {
			return r
		}
	}
	return nil
}

// httpFilters runs the filters of policies, and returns the route that the request takes
// after them.
func (p *Proxy) httpFilters(m *hcmv3.HttpConnectionManager, c Call, policies *policies, vh *routev3.VirtualHost) (route *routev3.Route) {
	policies.writes, policies.status = httpRBAC, 403
	r := &policies.request
	r.HTTP, r.Header = true, c.lines
	r.Path, _, _ = strings.Cut(c.Path, "?")
	r.Remote = remote(m, c)
	route = firstRoute(vh, c, r.Metadata)
	for _, f := range m.GetHttpFilters() {
		config, err := p.filter(f)
		if err == nil && f.GetDisabled() {
			continue
		}
		if err != nil {
			policies.unknown(f.GetName(), err)
		}
		if policies.ended() {
			return route
		}
		m, err := config.UnmarshalNew()
		if err != nil {
			policies.o.note("filter %s: %v", f.GetName(), err)
			continue
		}
		known := policies.run(f.GetName(), m)
		if t, ok := m.(*jwtv3.JwtAuthentication); ok {
			policies.tokens(f.GetName(), t, c)
			if known = true; policies.rerouted { // the claims may choose another route
				route = firstRoute(vh, c, r.Metadata)
			}
		}
		_, ofHost := vh.GetTypedPerFilterConfig()[f.GetName()]
		_, ofRoute := route.GetTypedPerFilterConfig()[f.GetName()]
		if known && (ofHost || ofRoute) {
			policies.unknown(f.GetName(), fmt.Errorf("route %q has settings for it", route.GetName()))
		}
	}
	return route
}

// filter returns the configuration of a filter: its own, that of its slot, or while the
// slot is empty, its default.
func (p *Proxy) filter(f *hcmv3.HttpFilter) (*anypb.Any, error) {
	d := f.GetConfigDiscovery()
	switch {
	case d == nil:
		return f.GetTypedConfig(), nil
	case p.slots[f.GetName()] != nil:
		return p.slots[f.GetName()], nil
	case d.GetDefaultConfig() != nil:
		return d.GetDefaultConfig(), nil
	}
	return nil, fmt.Errorf("it is missing")
}

// remote returns the address of the caller of a request. Proxies before may have named it.
func remote(m *hcmv3.HttpConnectionManager, c Call) netip.Addr {
	if slices.Contains(c.unknown, "x-forwarded-for") {
		return netip.Addr{}
	}
	hops := int(m.GetXffNumTrustedHops())
	if m.GetUseRemoteAddress().GetValue() {
		if hops == 0 {
			return c.From
		}
		hops--
	}
	named := strings.Split(strings.Join(c.lines("x-forwarded-for"), ","), ",")
	if at := len(named) - 1 - hops; at >= 0 {
		if a, err := netip.ParseAddr(strings.TrimSpace(named[at])); err == nil {
			return a
		}
	}
	return c.From
}

// clientCert is the header in which proxies tell servers about the client's certificate.
const clientCert = "x-forwarded-client-cert"

// forwarded reports whether a manager writes the header about the client's certificate, or
// passes one on. Otherwise it removes a header that a client sends.
func forwarded(m *hcmv3.HttpConnectionManager, c Call, policies *policies) bool {
	switch m.GetForwardClientCertDetails() {
	case hcmv3.HttpConnectionManager_APPEND_FORWARD, hcmv3.HttpConnectionManager_SANITIZE_SET, hcmv3.HttpConnectionManager_FORWARD_ONLY:
		return policies.request.TLS && c.Certificate != nil
	}
	return false
}

// tokenLine stands for the line of a header with Call.Token.
const tokenLine = "Bearer token"

// withToken returns the headers that Envoy receives, with the one in which the token is. The
// filter that verifies tokens reads Call.Token instead, and changes these.
func withToken(c Call) map[string][]string {
	all := map[string][]string{}
	if c.Token != nil {
		all["authorization"] = []string{tokenLine}
	}
	for name, lines := range c.Headers {
		name = strings.ToLower(name)
		all[name] = received(name, lines)
	}
	return all
}
