package proxyless

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Check returns why a gRPC client would reject a message, or take it and fail
// all requests (G10); none: the client takes it. Envoy's own rules are checked
// elsewhere.
func Check(m proto.Message) []string {
	var c checker
	switch m := m.(type) {
	case *listenerv3.Listener:
		c.listener(m)
	case *routev3.RouteConfiguration:
		c.routes(m)
	case *clusterv3.Cluster:
		c.cluster(m)
	case *endpointv3.ClusterLoadAssignment:
		c.assignment(m)
	default:
		c.add("%T is not asked for by gRPC clients", m)
	}
	return c.problems
}

// maxRing is the largest ring that grpc-go takes.
const maxRing = 8 << 20

type checker struct{ problems []string }

func (c *checker) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func fromServer(s *corev3.ConfigSource) bool { return s.GetAds() != nil || s.GetSelf() != nil }

func (c *checker) listener(l *listenerv3.Listener) {
	m := new(hcmv3.HttpConnectionManager)
	if err := l.GetApiListener().GetApiListener().UnmarshalTo(m); err != nil {
		c.add("api_listener is no HttpConnectionManager: %v", err)
		return
	}
	if m.GetXffNumTrustedHops() != 0 || len(m.GetOriginalIpDetectionExtensions()) > 0 {
		c.add("xff_num_trusted_hops and original_ip_detection_extensions must be unset")
	}
	switch {
	case m.GetRouteConfig() != nil:
		c.routes(m.GetRouteConfig())
	case m.GetRds().GetRouteConfigName() == "" || !fromServer(m.GetRds().GetConfigSource()):
		c.add("rds must name routes that come from the same server")
	}
	filters := m.GetHttpFilters()
	names := map[string]bool{}
	for i, f := range filters {
		if f.GetName() == "" || names[f.GetName()] {
			c.add("filter %d has the name %q, which is empty or taken", i, f.GetName())
		}
		names[f.GetName()] = true
		isRouter := f.GetTypedConfig().MessageIs((*routerv3.Router)(nil))
		switch last := i == len(filters)-1; {
		case isRouter != last:
			c.add("the router must be the last filter, and no other")
		case !isRouter && !isFault(f.GetTypedConfig()) && !f.GetIsOptional():
			c.add("filter %q is not known", f.GetName())
		}
	}
	if len(filters) == 0 {
		c.add("there must be a router filter")
	}
}

func isFault(config *anypb.Any) bool { return config.MessageIs((*faultv3.HTTPFault)(nil)) }

func (c *checker) overrides(where string, config map[string]*anypb.Any) {
	for name, any := range config {
		if !isFault(any) {
			c.add("%s has configuration of filter %q, which is not known", where, name)
		}
	}
}

func (c *checker) routes(rc *routev3.RouteConfiguration) {
	for _, h := range rc.GetVirtualHosts() {
		c.overrides("virtual host "+h.GetName(), h.GetTypedPerFilterConfig())
		c.retries(h.GetName(), h.GetRetryPolicy())
		for i, r := range h.GetRoutes() {
			c.route(fmt.Sprintf("route %d of %s", i, h.GetName()), r)
		}
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
	c.overrides(where, r.GetTypedPerFilterConfig())
	c.retries(where, r.GetRoute().GetRetryPolicy())
	split := r.GetRoute().GetWeightedClusters()
	if split == nil {
		return
	}
	var sum uint64
	for _, w := range split.GetClusters() {
		sum += uint64(w.GetWeight().GetValue())
		c.overrides(where, w.GetTypedPerFilterConfig())
	}
	if sum == 0 || sum > math.MaxUint32 {
		c.add("%s: the weights sum up to %d", where, sum)
	}
}

func (c *checker) retries(where string, p *routev3.RetryPolicy) {
	switch {
	case p == nil:
	case p.GetNumRetries() != nil && p.GetNumRetries().GetValue() == 0:
		c.add("%s: num_retries must be at least 1", where)
	case p.GetRetryBackOff() != nil && p.GetRetryBackOff().GetBaseInterval().AsDuration() <= 0:
		c.add("%s: base_interval must be positive", where)
	case p.GetRetryBackOff().GetMaxInterval() != nil && p.GetRetryBackOff().GetMaxInterval().AsDuration() <= 0:
		c.add("%s: max_interval must be positive", where)
	}
}

func (c *checker) cluster(m *clusterv3.Cluster) {
	switch m.GetLbPolicy() {
	case clusterv3.Cluster_ROUND_ROBIN, clusterv3.Cluster_LEAST_REQUEST:
	case clusterv3.Cluster_RING_HASH:
		if m.GetRingHashLbConfig().GetMinimumRingSize().GetValue() > maxRing {
			c.add("the ring has more than %d entries", maxRing)
		}
		if m.GetRingHashLbConfig().GetHashFunction() != clusterv3.Cluster_RingHashLbConfig_XX_HASH {
			c.add("the hash function must be XX_HASH")
		}
	default:
		c.add("lb_policy %s is not known", m.GetLbPolicy())
	}
	if m.GetTransportSocket() != nil || len(m.GetTransportSocketMatches()) > 0 {
		c.add("transport sockets are not made for gRPC clients yet")
	}
	switch {
	case m.GetClusterType() != nil:
		c.add("cluster type %s is not known", m.GetClusterType().GetName())
	case m.GetType() == clusterv3.Cluster_EDS:
		if !fromServer(m.GetEdsClusterConfig().GetEdsConfig()) {
			c.add("endpoints must come from the same server")
		}
	case m.GetType() == clusterv3.Cluster_LOGICAL_DNS:
		groups := m.GetLoadAssignment().GetEndpoints()
		if len(groups) != 1 || len(groups[0].GetLbEndpoints()) != 1 {
			c.add("there must be one endpoint")
			return
		}
		if a := groups[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress(); a.GetAddress() == "" || a.GetPortValue() == 0 || a.GetResolverName() != "" {
			c.add("the endpoint must be a name and a port")
		}
	default:
		c.add("cluster type %s is not known", m.GetType())
	}
}

func (c *checker) assignment(m *endpointv3.ClusterLoadAssignment) {
	addresses, groups := map[string]bool{}, map[string]bool{}
	priorities, sums := map[uint32]bool{}, map[uint32]uint64{}
	for i, g := range m.GetEndpoints() {
		l := g.GetLocality()
		if l == nil {
			c.add("group %d has no locality", i)
		}
		id := fmt.Sprintf("%d %q", g.GetPriority(), []string{l.GetRegion(), l.GetZone(), l.GetSubZone()})
		if groups[id] {
			c.add("group %d has the locality and priority of another", i)
		}
		groups[id] = true
		weight := g.GetLoadBalancingWeight().GetValue()
		if weight == 0 {
			c.add("group %d has no weight: its endpoints would not be used", i)
		}
		priorities[g.GetPriority()] = true
		if sums[g.GetPriority()] += uint64(weight); sums[g.GetPriority()] > math.MaxUint32 {
			c.add("the weights of priority %d are too large", g.GetPriority())
		}
		for _, lb := range g.GetLbEndpoints() {
			c.endpoint(lb, addresses)
		}
	}
	for p := range uint32(len(priorities)) {
		if !priorities[p] {
			c.add("there is no priority %d", p)
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
	if lb.GetLoadBalancingWeight() != nil && lb.GetLoadBalancingWeight().GetValue() == 0 {
		c.add("%s has a weight of 0", key)
	}
}
