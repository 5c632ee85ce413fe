package validate

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

const (
	endpointsType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	resourceField = "spec.resource"
)

func ResourceEndpointsOnly(old, new proto.Message) bool {
	is := func(m proto.Message) bool {
		return m == nil || m.(*configv1.Resource).GetResource().GetTypeUrl() == endpointsType
	}
	return is(old) && is(new)
}

// validateResource checks a raw Envoy resource for all that Envoy would refuse
// and that can be known without the rest of its configuration.
func Resource(m proto.Message) []problem.Problem {
	c := checker{}
	a := m.(*configv1.Resource).GetResource()
	if a.GetTypeUrl() == "" {
		c.add(resourceField, "is missing", "write the Envoy resource here, with its @type")
		return c.result()
	}
	if a.GetTypeUrl() == endpointsType && plainAssignment.holds(a.GetValue()) {
		return nil
	}
	inner, err := a.UnmarshalNew()
	if err != nil {
		c.add(resourceField, fmt.Sprintf("type %q: %v", a.GetTypeUrl(), err), "use "+resourceTypes)
		return c.result()
	}
	at := &fieldPath{name: resourceField}
	switch r := inner.(type) {
	case *clusterv3.Cluster:
		c.named("name", r.GetName())
	case *endpointv3.ClusterLoadAssignment:
		c.named("cluster_name", r.GetClusterName())
		c.addresses(at, r)
	case *listenerv3.Listener:
		c.named("name", r.GetName())
	case *routev3.RouteConfiguration:
		c.named("name", r.GetName())
	default:
		c.add(resourceField, fmt.Sprintf("%s is not served as it is", inner.ProtoReflect().Descriptor().FullName()), "use "+resourceTypes)
		return c.result()
	}
	c.generated(at, inner)
	c.message(at, inner.ProtoReflect(), 1)
	return c.result()
}

const resourceTypes = "a Cluster, ClusterLoadAssignment, Listener or RouteConfiguration of Envoy's v3 API"

func (c *checker) named(field, name string) {
	if name == "" {
		c.add(resourceField+"."+field, "is empty", "give the resource the name by which Envoy asks for it")
	}
}

// addresses checks endpoints that Envoy takes as they are, without DNS: it
// refuses the whole response that brings a host name.
func (c *checker) addresses(at *fieldPath, l *endpointv3.ClusterLoadAssignment) {
	for i, loc := range l.GetEndpoints() {
		for j, lb := range loc.GetLbEndpoints() {
			c.address(lb.GetEndpoint().GetAddress(), func() string {
				return fmt.Sprintf("%s.endpoints[%d].lb_endpoints[%d].endpoint", at, i, j)
			})
			for k, a := range lb.GetEndpoint().GetAdditionalAddresses() {
				c.address(a.GetAddress(), func() string {
					return fmt.Sprintf("%s.endpoints[%d].lb_endpoints[%d].endpoint.additional_addresses[%d]", at, i, j, k)
				})
			}
		}
	}
}

// address checks the field address of what is at in.
func (c *checker) address(a *corev3.Address, in func() string) {
	s := a.GetSocketAddress()
	if s == nil || s.GetResolverName() != "" {
		return
	}
	if _, err := netip.ParseAddr(s.GetAddress()); err != nil {
		c.add(in()+".address.socket_address.address", fmt.Sprintf("%q is no IP address", s.GetAddress()),
			"use an IP address here, or a cluster of type STRICT_DNS for a host name")
	}
	if s.GetNamedPort() != "" {
		c.add(in()+".address.socket_address.named_port", "needs a resolver", "use port_value")
	}
}

func (c *checker) cluster(at *fieldPath, cl *clusterv3.Cluster) {
	if _, custom := cl.GetClusterDiscoveryType().(*clusterv3.Cluster_ClusterType); !custom {
		switch load := cl.GetLoadAssignment(); cl.GetType() {
		case clusterv3.Cluster_STATIC:
			c.addresses(&fieldPath{up: at, name: "load_assignment"}, load)
		case clusterv3.Cluster_LOGICAL_DNS:
			if l := load.GetEndpoints(); len(l) != 1 || len(l[0].GetLbEndpoints()) != 1 {
				c.add(at.String()+".load_assignment", "a cluster of type LOGICAL_DNS has exactly one endpoint", "leave one endpoint, or use STRICT_DNS")
			}
		}
	}
	if ring := cl.GetRingHashLbConfig(); ring != nil {
		c.ring(&fieldPath{up: at, name: "ring_hash_lb_config"}, ring.GetMinimumRingSize(), ring.GetMaximumRingSize())
	}
}

// Envoy's sizes of a hash ring where none are set.
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
		c.add(at.String()+".minimum_ring_size", fmt.Sprintf("%d is above the maximum of %d", minimum, maximum),
			fmt.Sprintf("minimum_ring_size (default %d) must not exceed maximum_ring_size", defaultMinRing))
	}
}

func (c *checker) prime(at *fieldPath, n uint64) {
	if n != 0 && !isPrime(n) {
		c.add(at.String()+".table_size", fmt.Sprintf("%d is no prime number", n), "use a prime such as 65537")
	}
}

func isPrime(n uint64) bool { return new(big.Int).SetUint64(n).ProbablyPrime(0) }

func (c *checker) weights(at *fieldPath, w *routev3.WeightedCluster) {
	var sum uint64
	for _, cl := range w.GetClusters() {
		sum += uint64(cl.GetWeight().GetValue())
	}
	if sum == 0 || sum > math.MaxUint32 {
		c.add(at.String()+".clusters", fmt.Sprintf("the weights add up to %d", sum), "give weights with a sum from 1 to 4294967295")
	}
}

// routes finds what Envoy refuses when it builds the route table.
func (c *checker) routes(at *fieldPath, r *routev3.RouteConfiguration) {
	names, domains := map[string]int{}, map[string]string{}
	for i, vh := range r.GetVirtualHosts() {
		host := fmt.Sprintf("virtual_hosts[%d]", i)
		if first, dup := names[vh.GetName()]; dup {
			c.add(fmt.Sprintf("%s.%s.name", at, host),
				fmt.Sprintf("%q is the name of virtual_hosts[%d] already", vh.GetName(), first), "give each virtual host its own name")
		} else {
			names[vh.GetName()] = i
		}
		for j, d := range vh.GetDomains() {
			field := fmt.Sprintf("%s.domains[%d]", host, j)
			if first, dup := domains[strings.ToLower(d)]; dup {
				c.add(fmt.Sprintf("%s.%s", at, field),
					fmt.Sprintf("domain %q is taken by %s", d, first), "domains are compared without case and may come once in a RouteConfiguration")
			} else {
				domains[strings.ToLower(d)] = field
			}
		}
	}
}
