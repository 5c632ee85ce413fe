package validate

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"meshlog.dev/services/mesh/problem"
)

// CheckGRPC finds what gRPC clients would reject in a resource, which is an error,
// and what they would take and not do, which is a warning. They are their own proxy,
// know a part of Envoy's API and ignore its generated validation (G10): the rules
// are those of grpc-go, with the environment that it has by default. Paths of fields
// begin with the name of the message. It is safe for concurrent use.
//
// What clients leave out, such as a whole route, is a warning of code Unsupported:
// with it the rest means what is written.
func CheckGRPC(m proto.Message) []problem.Diagnostic {
	c := checker{}
	grpc{&c}.resource(&fieldPath{name: string(m.ProtoReflect().Descriptor().Name())}, m)
	return c.result()
}

// Unsupported is the code of problems with what clients leave out.
const Unsupported = "unsupported"

func (g grpc) unsupported(at *fieldPath, advice, reason string) {
	g.add(problem.Warning, Unsupported, at, advice, reason)
}

// grpc collects the problems of a resource for gRPC clients.
type grpc struct{ *checker }

func (g grpc) resource(at *fieldPath, m proto.Message) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		g.cluster(at, m)
	case *endpointv3.ClusterLoadAssignment:
		g.assignment(at, m)
	case *listenerv3.Listener:
		g.listener(at, m)
	case *routev3.RouteConfiguration:
		g.routes(at, m)
	}
}

const (
	tooHeavy  = "the weights add up to %d"
	lighten   = "give weights whose sum is at most 4294967295"
	fromADS   = "write {ads: {}} or {self: {}}: gRPC clients take it from this server only"
	wrongGRPC = "is not known to gRPC clients"
	neverSet  = "gRPC clients refuse it"
	removeIt  = "remove it"

	encodeAgain = "its bytes cannot be read: encode it again"
	ignoreRoute = "gRPC clients ignore the whole route"
)

func (g grpc) assignment(at *fieldPath, l *endpointv3.ClusterLoadAssignment) {
	type locality struct {
		region, zone, subZone string
		priority              uint32
	}
	localities, addresses, weights := map[locality]bool{}, map[string]bool{}, map[uint32]uint64{}
	for i, d := range l.GetPolicy().GetDropOverloads() {
		of := d.GetDropPercentage().GetDenominator()
		g.errorIf(typev3.FractionalPercent_DenominatorType_name[int32(of)] == "",
			at.field("policy.drop_overloads").item(i).field("drop_percentage.denominator"), "use HUNDRED, TEN_THOUSAND or MILLION", wrongGRPC)
	}
	for i, e := range l.GetEndpoints() {
		at, of := at.field("endpoints").item(i), e.GetLocality()
		if of == nil {
			g.errorf(at.field("locality"), "write one; {} will do", isMissing)
			continue
		}
		if e.GetLoadBalancingWeight().GetValue() == 0 {
			g.warnf(at.field("load_balancing_weight"), "give it a weight, such as 1", "is not set: gRPC clients ignore these endpoints")
			continue
		}
		weights[e.GetPriority()] += uint64(e.GetLoadBalancingWeight().GetValue())
		if sum := weights[e.GetPriority()]; sum > math.MaxUint32 {
			g.errorf(at.field("load_balancing_weight"), lighten, tooHeavy, sum)
		}
		g.errorIf(!first(localities, locality{of.GetRegion(), of.GetZone(), of.GetSubZone(), e.GetPriority()}),
			at.field("locality"), "join the endpoints of a locality and priority in one item", "is that of an earlier item with the same priority")
		g.endpoints(at.field("lb_endpoints"), e.GetLbEndpoints(), addresses)
	}
	for p := range uint32(len(weights)) {
		if weights[p] == 0 {
			g.errorf(at.field("endpoints"), "number the priorities 0, 1, 2 and so on", "there are endpoints of a higher priority, and none of priority %d", p)
			return
		}
	}
}

func (g grpc) endpoints(at *fieldPath, list []*endpointv3.LbEndpoint, addresses map[string]bool) {
	sum := uint64(0)
	for i, lb := range list {
		e, at := lb.GetEndpoint(), at.item(i)
		weight := uint64(1)
		if w := lb.GetLoadBalancingWeight(); w != nil {
			weight = uint64(w.GetValue())
			g.errorIf(weight == 0, at.field("load_balancing_weight"), "use 1 or more, or remove the endpoint", "is 0")
		}
		if sum += weight; sum > math.MaxUint32 {
			g.errorf(at.field("load_balancing_weight"), lighten, tooHeavy, sum)
		}
		g.address(at.field("endpoint.address"), e.GetAddress(), addresses)
		for j, a := range e.GetAdditionalAddresses() {
			g.address(at.field("endpoint.additional_addresses").item(j).field("address"), a.GetAddress(), addresses)
		}
	}
}

// address checks an address, which gRPC clients dial as it is: an IP address or a
// name.
func (g grpc) address(at *fieldPath, a *corev3.Address, seen map[string]bool) {
	s := a.GetSocketAddress()
	if !first(seen, fmt.Sprintf("%s:%d", s.GetAddress(), s.GetPortValue())) {
		g.errorf(at, keepOne, "%s:%d is there twice", s.GetAddress(), s.GetPortValue())
	}
	if s.GetPortValue() == 0 {
		g.warnf(at, "write socket_address with address and port_value", "has no port that gRPC clients could call")
	}
}

func (g grpc) cluster(at *fieldPath, cl *clusterv3.Cluster) {
	switch cl.GetLbPolicy() {
	case clusterv3.Cluster_ROUND_ROBIN:
	case clusterv3.Cluster_RING_HASH:
		ring, at := cl.GetRingHashLbConfig(), at.field("ring_hash_lb_config")
		g.errorIf(ring.GetHashFunction() != clusterv3.Cluster_RingHashLbConfig_XX_HASH, at.field("hash_function"), "use XX_HASH", wrongGRPC)
		g.ring(at, ring.GetMinimumRingSize(), ring.GetMaximumRingSize())
	case clusterv3.Cluster_LEAST_REQUEST:
		g.choices(at.field("least_request_lb_config.choice_count"), cl.GetLeastRequestLbConfig().GetChoiceCount())
	default:
		g.errorf(at.field("lb_policy"), "use ROUND_ROBIN, LEAST_REQUEST or RING_HASH; load_balancing_policy may say more", "%s %s", cl.GetLbPolicy(), wrongGRPC)
	}
	if p := cl.GetLoadBalancingPolicy(); p != nil {
		g.policy(at.field("load_balancing_policy"), p, 1)
	}
	g.errorIf(len(cl.GetTransportSocketMatches()) > 0, at.field("transport_socket_matches"), removeIt, neverSet)
	g.upstreamTLS(at.field("transport_socket"), cl.GetTransportSocket())
	g.outliers(at.field("outlier_detection"), cl.GetOutlierDetection())
	g.errorIf(cl.GetLrsServer() != nil && cl.GetLrsServer().GetSelf() == nil, at.field("lrs_server"), "write {self: {}}, or remove it", neverSet)
	g.discovery(at, cl)
}

// discovery checks how a cluster finds its endpoints.
func (g grpc) discovery(at *fieldPath, cl *clusterv3.Cluster) {
	custom := cl.GetClusterType()
	switch {
	case custom.GetName() == "envoy.clusters.aggregate":
		m := new(aggregatev3.ClusterConfig)
		at := at.field("cluster_type.typed_config")
		if err := proto.Unmarshal(custom.GetTypedConfig().GetValue(), m); err != nil {
			g.errorf(at, encodeAgain, "%v", err)
		}
		g.errorIf(len(m.GetClusters()) == 0, at.field("clusters"), "name clusters", isEmpty)
	case custom != nil:
		g.errorf(at.field("cluster_type"), "use type EDS or LOGICAL_DNS, or the cluster type envoy.clusters.aggregate", "%q %s", custom.GetName(), wrongGRPC)
	case cl.GetType() == clusterv3.Cluster_EDS:
		eds, at := cl.GetEdsClusterConfig(), at.field("eds_cluster_config")
		g.source(at.field("eds_config"), eds.GetEdsConfig())
		g.errorIf(strings.HasPrefix(cl.GetName(), "xdstp:") && eds.GetServiceName() == "", at.field("service_name"), "name the endpoints", isMissing)
	case cl.GetType() == clusterv3.Cluster_LOGICAL_DNS:
		g.name(at.field("load_assignment"), cl.GetLoadAssignment())
	default:
		g.errorf(at.field("type"), "use EDS or LOGICAL_DNS", "%s %s", cl.GetType(), wrongGRPC)
	}
}

// name checks the only endpoint of a cluster of type LOGICAL_DNS.
func (g grpc) name(at *fieldPath, l *endpointv3.ClusterLoadAssignment) {
	if all := l.GetEndpoints(); len(all) != 1 || len(all[0].GetLbEndpoints()) != 1 {
		g.errorf(at, "leave one endpoint", "a cluster of type LOGICAL_DNS has exactly one endpoint")
		return
	}
	s := l.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	at = at.field("endpoints[0].lb_endpoints[0].endpoint.address.socket_address")
	g.errorIf(s.GetAddress() == "", at.field("address"), "write the name", isMissing)
	g.errorIf(s.GetPortValue() == 0, at.field("port_value"), "write the port", isMissing)
	g.errorIf(s.GetResolverName() != "", at.field("resolver_name"), removeIt, neverSet)
}

func (g grpc) source(at *fieldPath, s *corev3.ConfigSource) {
	g.errorIf(s.GetAds() == nil && s.GetSelf() == nil, at, fromADS, "is another source, or none")
}

func (g grpc) choices(at *fieldPath, n *wrapperspb.UInt32Value) {
	if n != nil && n.GetValue() < 2 {
		g.errorf(at, "use 2 or more", "is %d", n.GetValue())
	}
}

// maxPolicies is how deep policies may nest.
const maxPolicies = 16

// policy checks the first load balancing policy that gRPC clients know, which is the
// one that they use.
func (g grpc) policy(at *fieldPath, p *clusterv3.LoadBalancingPolicy, depth int) {
	if depth > maxPolicies {
		g.errorf(at, "nest less deeply", "more than %d policies within each other", maxPolicies)
		return
	}
	for i, one := range p.GetPolicies() {
		config, at := one.GetTypedExtensionConfig().GetTypedConfig(), at.field("policies").item(i).field("typed_extension_config.typed_config")
		kind, isEnvoys := strings.CutPrefix(config.GetTypeUrl(), "type.googleapis.com/envoy.extensions.load_balancing_policies.")
		var m proto.Message
		switch {
		case isEnvoys && kind == "ring_hash.v3.RingHash":
			m = new(ringhashv3.RingHash)
		case isEnvoys && kind == "least_request.v3.LeastRequest":
			m = new(leastrequestv3.LeastRequest)
		case isEnvoys && kind == "wrr_locality.v3.WrrLocality":
			m = new(wrrlocalityv3.WrrLocality)
		case isEnvoys && (kind == "round_robin.v3.RoundRobin" || kind == "pick_first.v3.PickFirst" ||
			kind == "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin"), strings.HasSuffix(config.GetTypeUrl(), ".TypedStruct"):
			return // the client may know what is in a TypedStruct
		default:
			continue
		}
		if err := config.UnmarshalTo(m); err != nil {
			g.errorf(at, encodeAgain, "%v", err)
		}
		switch m := m.(type) {
		case *ringhashv3.RingHash:
			g.errorIf(m.GetHashFunction() != ringhashv3.RingHash_XX_HASH, at.field("hash_function"), "use XX_HASH", wrongGRPC)
			g.ring(at, m.GetMinimumRingSize(), m.GetMaximumRingSize())
		case *leastrequestv3.LeastRequest:
			g.choices(at.field("choice_count"), m.GetChoiceCount())
		case *wrrlocalityv3.WrrLocality:
			g.policy(at.field("endpoint_picking_policy"), m.GetEndpointPickingPolicy(), depth+1)
		}
		return
	}
	g.errorf(at.field("policies"), "add one of round_robin, pick_first, ring_hash, least_request, wrr_locality and client_side_weighted_round_robin",
		"there is none that gRPC clients know")
}

// ring checks the sizes of a hash ring.
func (g grpc) ring(at *fieldPath, low, high *wrapperspb.UInt64Value) {
	for name, size := range map[string]uint64{"minimum_ring_size": low.GetValue(), "maximum_ring_size": high.GetValue()} {
		if size > defaultMaxRing {
			g.errorf(at.field(name), fmt.Sprintf("use %d or less", defaultMaxRing), "is %d", size)
		}
	}
	g.checker.ring(at, low, high)
}

func (g grpc) outliers(at *fieldPath, o *clusterv3.OutlierDetection) {
	for name, d := range map[string]*durationpb.Duration{
		"interval": o.GetInterval(), "base_ejection_time": o.GetBaseEjectionTime(), "max_ejection_time": o.GetMaxEjectionTime(),
	} {
		g.errorIf(d != nil && (d.CheckValid() != nil || d.AsDuration() < 0), at.field(name), "use 0s or more", "is no valid duration, or negative")
	}
	for name, percent := range map[string]*wrapperspb.UInt32Value{
		"max_ejection_percent": o.GetMaxEjectionPercent(), "enforcing_success_rate": o.GetEnforcingSuccessRate(),
		"failure_percentage_threshold": o.GetFailurePercentageThreshold(), "enforcing_failure_percentage": o.GetEnforcingFailurePercentage(),
	} {
		g.errorIf(percent.GetValue() > 100, at.field(name), "use 100 or less", "is more than 100 percent")
	}
}
