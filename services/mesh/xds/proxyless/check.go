// Package proxyless checks resources for gRPC clients, which are their own proxy
// and understand a part of Envoy's API: they reject everything else (G10; all
// facts about gRPC clients are in frontend/FACTS.md).
//
// It is pure.
package proxyless

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// Check returns why a gRPC client would reject a generated message, or take it
// and fail all requests (G10); none: the client takes it. Check does not repeat
// what validate.CheckEnvoy finds, and ignores fields that mesh/xds never sets.
func Check(m proto.Message) []string {
	var c checker
	switch m := m.(type) {
	case *listenerv3.Listener:
		c.listener(m)
	case *routev3.RouteConfiguration:
		for _, h := range m.GetVirtualHosts() {
			for i, r := range h.GetRoutes() {
				c.route(fmt.Sprintf("route %d of %s", i, h.GetName()), r)
			}
		}
	case *clusterv3.Cluster:
		c.cluster(m)
	case *endpointv3.ClusterLoadAssignment:
		c.assignment(m)
	default:
		c.add("%T is not asked for by gRPC clients", m)
	}
	return c.problems
}

type checker struct{ problems []string }

func (c *checker) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func (c *checker) listener(l *listenerv3.Listener) {
	m := new(hcmv3.HttpConnectionManager)
	if err := l.GetApiListener().GetApiListener().UnmarshalTo(m); err != nil {
		c.add("api_listener is no HttpConnectionManager: %v", err)
		return
	}
	if m.GetXffNumTrustedHops() != 0 || len(m.GetOriginalIpDetectionExtensions()) > 0 {
		c.add("xff_num_trusted_hops and original_ip_detection_extensions must be unset")
	}
	if m.GetRds().GetRouteConfigName() == "" || m.GetRds().GetConfigSource().GetAds() == nil {
		c.add("rds must name routes that come from the same server")
	}
	filters := m.GetHttpFilters()
	for i, f := range filters {
		isRouter := f.GetTypedConfig().MessageIs((*routerv3.Router)(nil))
		switch last := i == len(filters)-1; {
		case isRouter != last:
			c.add("the router must be the last filter, and no other")
		case !isRouter && !f.GetTypedConfig().MessageIs((*faultv3.HTTPFault)(nil)) && !f.GetIsOptional():
			c.add("filter %q is not known", f.GetName())
		}
	}
	if len(filters) == 0 {
		c.add("there must be a router filter")
	}
}

func (c *checker) route(where string, r *routev3.Route) {
	switch r.GetMatch().GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix, *routev3.RouteMatch_Path, *routev3.RouteMatch_SafeRegex:
	default:
		c.add("%s: only prefix, path and safe_regex are known", where)
	}
	if len(r.GetMatch().GetDynamicMetadata()) > 0 {
		c.add("%s: dynamic_metadata is not looked at: it would match more", where)
	}
	for name, config := range r.GetTypedPerFilterConfig() {
		if !config.MessageIs((*faultv3.HTTPFault)(nil)) {
			c.add("%s has configuration of filter %q, which is not known", where, name)
		}
	}
	if n := r.GetRoute().GetRetryPolicy().GetNumRetries(); n != nil && n.GetValue() == 0 {
		c.add("%s: num_retries must be at least 1", where)
	}
}

func (c *checker) cluster(m *clusterv3.Cluster) {
	switch m.GetLbPolicy() {
	case clusterv3.Cluster_ROUND_ROBIN, clusterv3.Cluster_LEAST_REQUEST, clusterv3.Cluster_RING_HASH:
	default:
		c.add("lb_policy %s is not known", m.GetLbPolicy())
	}
	if m.GetTransportSocket() != nil || len(m.GetTransportSocketMatches()) > 0 {
		c.add("transport sockets are not made for gRPC clients yet")
	}
	switch m.GetType() {
	case clusterv3.Cluster_EDS:
		if m.GetEdsClusterConfig().GetEdsConfig().GetAds() == nil {
			c.add("endpoints must come from the same server")
		}
	case clusterv3.Cluster_LOGICAL_DNS:
	default:
		c.add("cluster type %s is not known", cmp.Or(m.GetClusterType().GetName(), m.GetType().String()))
	}
}

func (c *checker) assignment(m *endpointv3.ClusterLoadAssignment) {
	addresses, localities := map[string]bool{}, map[string]bool{}
	for i, g := range m.GetEndpoints() {
		l := g.GetLocality()
		if l == nil {
			c.add("group %d has no locality", i)
		}
		id := fmt.Sprintf("%q", []string{l.GetRegion(), l.GetZone(), l.GetSubZone()})
		if localities[id] {
			c.add("group %d has the locality of another", i)
		}
		localities[id] = true
		if g.GetPriority() != 0 {
			c.add("group %d has priority %d, and priorities are not made for gRPC clients yet", i, g.GetPriority())
		}
		if g.GetLoadBalancingWeight().GetValue() == 0 {
			c.add("group %d has no weight: its endpoints would not be used", i)
		}
		for _, lb := range g.GetLbEndpoints() {
			c.endpoint(lb, addresses)
		}
	}
}

func (c *checker) endpoint(lb *endpointv3.LbEndpoint, addresses map[string]bool) {
	a := lb.GetEndpoint().GetAddress().GetSocketAddress()
	if _, err := netip.ParseAddr(a.GetAddress()); err != nil {
		c.add("%s is no IP address", strings.TrimSpace(lb.GetEndpoint().GetAddress().String()))
	}
	key := fmt.Sprintf("%s %d", a.GetAddress(), a.GetPortValue())
	if addresses[key] {
		c.add("%s is there twice", key)
	}
	addresses[key] = true
}
