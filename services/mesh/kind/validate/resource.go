package validate

import (
	"fmt"
	"math"
	"math/big"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

const (
	endpointsType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	resourceTypes = "use a Cluster, ClusterLoadAssignment, Listener or RouteConfiguration of Envoy's v3 API"
)

// ResourceEndpointsOnly reports whether a change from old to new changes nothing
// but endpoints.
func ResourceEndpointsOnly(old, new proto.Message) bool {
	is := func(m proto.Message) bool {
		return m == nil || m.(*configv1.Resource).GetResource().GetTypeUrl() == endpointsType
	}
	return is(old) && is(new)
}

// Resource finds what the clients that a raw Envoy resource selects would refuse in
// it, as far as this depends on no other configuration (PRO-6).
func Resource(m proto.Message) []problem.Diagnostic {
	c := checker{}
	at := root.field("resource")
	a, client := m.(*configv1.Resource).GetResource(), m.(*configv1.Resource).GetNodes().GetClient()
	switch client {
	case "", proxy.Envoy, proxy.GRPC:
	default:
		c.errorf(root.field("nodes.client"), "write envoy or grpc, or remove it to select both", "%q is no kind of client", client)
	}
	if a.GetTypeUrl() == "" {
		c.errorf(at, "write the Envoy resource here, with its @type", isMissing)
		return c.result()
	}
	if a.GetTypeUrl() == endpointsType && client != proxy.GRPC && plainAssignment.holds(a.GetValue()) {
		return c.result()
	}
	inner, err := a.UnmarshalNew()
	if err != nil {
		c.errorf(at, resourceTypes, "type %q: %v", a.GetTypeUrl(), err)
		return c.result()
	}
	const name = "give the resource the name by which clients ask for it"
	switch r := inner.(type) {
	case *endpointv3.ClusterLoadAssignment:
		c.errorIf(r.GetClusterName() == "", at.field("cluster_name"), name, isEmpty)
	case *clusterv3.Cluster, *listenerv3.Listener, *routev3.RouteConfiguration:
		c.errorIf(r.(interface{ GetName() string }).GetName() == "", at.field("name"), name, isEmpty)
	default:
		c.errorf(at, resourceTypes, "%s cannot be served by itself", inner.ProtoReflect().Descriptor().FullName())
		return c.result()
	}
	if client == proxy.GRPC {
		grpc{&c}.resource(at, inner)
		return c.result()
	}
	if l, ok := inner.(*endpointv3.ClusterLoadAssignment); ok {
		c.addresses(at, l)
	}
	c.generated(at, inner)
	c.message(at, inner.ProtoReflect(), 1)
	return c.result()
}

// addresses checks endpoints whose addresses Envoy does not resolve: Envoy
// refuses the whole response if one is a host name.
func (c *checker) addresses(at *fieldPath, l *endpointv3.ClusterLoadAssignment) {
	for i, loc := range l.GetEndpoints() {
		for j, lb := range loc.GetLbEndpoints() {
			at := at.field("endpoints").item(i).field("lb_endpoints").item(j).field("endpoint")
			c.address(at, lb.GetEndpoint().GetAddress())
			for k, a := range lb.GetEndpoint().GetAdditionalAddresses() {
				c.address(at.field("additional_addresses").item(k), a.GetAddress())
			}
		}
	}
}

func (c *checker) address(in *fieldPath, a *corev3.Address) {
	s := a.GetSocketAddress()
	if s == nil || s.GetResolverName() != "" {
		return
	}
	at := in.field("address.socket_address")
	c.errorIf(!isIP(s.GetAddress()), at.field("address"), "use an IP address here, or a cluster of type STRICT_DNS for a host name",
		"%q is not an IP address", s.GetAddress())
	c.errorIf(s.GetNamedPort() != "", at.field("named_port"), "use port_value", "needs a resolver")
}

func (c *checker) cluster(at *fieldPath, cl *clusterv3.Cluster) {
	if _, custom := cl.GetClusterDiscoveryType().(*clusterv3.Cluster_ClusterType); !custom {
		switch load := cl.GetLoadAssignment(); cl.GetType() {
		case clusterv3.Cluster_STATIC:
			c.addresses(at.field("load_assignment"), load)
		case clusterv3.Cluster_LOGICAL_DNS:
			l := load.GetEndpoints()
			c.errorIf(len(l) != 1 || len(l[0].GetLbEndpoints()) != 1, at.field("load_assignment"),
				"leave one endpoint, or use STRICT_DNS", "a cluster of type LOGICAL_DNS has exactly one endpoint")
		}
	}
	if ring := cl.GetRingHashLbConfig(); ring != nil {
		c.ring(at.field("ring_hash_lb_config"), ring.GetMinimumRingSize(), ring.GetMaximumRingSize())
	}
}

// Envoy's default sizes of a hash ring.
const (
	defaultMinRing = 1024
	defaultMaxRing = 8 << 20
)

func (c *checker) ring(at *fieldPath, low, high *wrapperspb.UInt64Value) {
	minimum, maximum := uint64(defaultMinRing), uint64(defaultMaxRing)
	if low != nil {
		minimum = low.GetValue()
	}
	if high != nil {
		maximum = high.GetValue()
	}
	if minimum > maximum {
		c.errorf(at.field("minimum_ring_size"), fmt.Sprintf("minimum_ring_size (default %d) must not exceed maximum_ring_size", defaultMinRing),
			"%d is above the maximum of %d", minimum, maximum)
	}
}

func (c *checker) prime(at *fieldPath, n uint64) {
	if n != 0 && !isPrime(n) {
		c.errorf(at.field("table_size"), "use a prime such as 65537", "%d is not a prime number", n)
	}
}

func isPrime(n uint64) bool { return new(big.Int).SetUint64(n).ProbablyPrime(0) }

func (c *checker) weights(at *fieldPath, w *routev3.WeightedCluster) {
	var sum uint64
	for _, cl := range w.GetClusters() {
		sum += uint64(cl.GetWeight().GetValue())
	}
	if sum == 0 || sum > math.MaxUint32 {
		c.errorf(at.field("clusters"), "give weights with a sum from 1 to 4294967295", "the weights add up to %d", sum)
	}
}

// routes finds what Envoy refuses when it builds the route table.
func (c *checker) routes(at *fieldPath, r *routev3.RouteConfiguration) {
	type place struct{ host, domain int }
	names, domains := map[string]int{}, map[string]place{}
	for i, vh := range r.GetVirtualHosts() {
		host := at.field("virtual_hosts").item(i)
		if earlier, dup := names[vh.GetName()]; dup {
			c.errorf(host.field("name"), "give each virtual host its own name", "%q is the name of virtual_hosts[%d] already", vh.GetName(), earlier)
		} else {
			names[vh.GetName()] = i
		}
		for j, d := range vh.GetDomains() {
			if earlier, dup := domains[strings.ToLower(d)]; dup {
				c.errorf(host.field("domains").item(j), "domains are compared without case and may come once in a RouteConfiguration",
					"domain %q is taken by virtual_hosts[%d].domains[%d]", d, earlier.host, earlier.domain)
			} else {
				domains[strings.ToLower(d)] = place{i, j}
			}
		}
	}
}
