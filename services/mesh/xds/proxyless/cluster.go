package proxyless

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/cluster"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

type clusters struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
}

// Clusters returns the parts that a class of gRPC clients gets by CDS.
func Clusters(r *index.Reader, class index.CDSClass) []piece.Part {
	services := r.Services(class.Scope)
	parts := make([]piece.Part, 0, len(services))
	for _, s := range services {
		rule, _ := r.Rule(class.Scope, s.Namespace, s.Hostname)
		parts = append(parts, clusters{s.ServiceID, rule})
	}
	return parts
}

type assignments struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
	view    index.ServiceView
}

// Endpoints returns the parts that a class of gRPC clients gets by EDS.
func Endpoints(r *index.Reader, class index.EDSClass) []piece.Part {
	services, views := r.Services(class.Scope), r.Views(class.View)
	parts := make([]piece.Part, 0, len(services)+1)
	for _, s := range services {
		if hasEndpoints(s) {
			rule, _ := r.Rule(class.Scope, s.Namespace, s.Hostname)
			parts = append(parts, assignments{s.ServiceID, rule, views.Of(s.ServiceID)})
		}
	}
	if len(parts) > 0 {
		parts = append(parts, nothing{})
	}
	return parts
}

// hasEndpoints reports whether the endpoints of a service come by EDS. That
// includes headless services: a client has no connection of another caller to
// pass through (SVC-3).
func hasEndpoints(s *index.Service) bool { return s.Resolution == index.Static || s.Headless }

// nothing is the part for the empty assignment of clusters that must not be
// reached.
type nothing struct{}

func (nothing) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: piece.BlackHoleCluster, Message: &endpointv3.ClusterLoadAssignment{ClusterName: piece.BlackHoleCluster}}}, nil
}

// maker makes the clusters and assignments of one service.
type maker struct {
	mesh      *meshconfig.MeshConfig
	service   *index.Service
	rule      *networking.DestinationRule // nil: none
	ruleKeys  []ident.Key                 // the objects that it was merged from
	endpoints index.Endpoints

	problems []problem.Diagnostic
}

func newMaker(r *index.Reader, service index.ServiceID, rule index.RuleID) *maker {
	m := &maker{mesh: r.Mesh(), service: r.Service(service)}
	if rule != (index.RuleID{}) {
		m.rule, m.ruleKeys = r.DestinationRule(rule)
	}
	return m
}

func (p clusters) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m.service == nil {
		return nil, nil
	}
	if !hasEndpoints(m.service) {
		m.endpoints = r.Endpoints(p.service) // a DNS cluster contains its endpoints (I19)
	}
	return m.clusters(), m.problems
}

func (p assignments) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m.service == nil {
		return nil, nil
	}
	m.endpoints = r.Endpoints(p.service)
	return m.assignments(p.view), nil
}

// each calls f for every cluster of the service.
func (m *maker) each(f func(name string, port index.Port, labels map[string]string, policy traffic.Policy)) {
	for _, port := range m.service.Ports {
		if !speaksGRPC(port) {
			continue
		}
		f(piece.ClusterName(m.service.Hostname, "", port.Number), port, nil, traffic.Of(m.mesh, m.rule, port.Number))
		for i, s := range m.rule.GetSubsets() {
			f(piece.ClusterName(m.service.Hostname, s.GetName(), port.Number), port, s.GetLabels(), traffic.OfSubset(m.mesh, m.rule, i, port.Number))
		}
	}
}

func (m *maker) clusters() []piece.Piece {
	var pieces []piece.Piece
	m.each(func(name string, port index.Port, labels map[string]string, policy traffic.Policy) {
		if c := m.cluster(name, port, labels, policy); c != nil {
			pieces = append(pieces, piece.Piece{Name: name, Message: c})
		}
	})
	return pieces
}

// cluster returns nil if gRPC has nothing equivalent.
func (m *maker) cluster(name string, port index.Port, labels map[string]string, policy traffic.Policy) *clusterv3.Cluster {
	c := &clusterv3.Cluster{Name: name, CircuitBreakers: &clusterv3.CircuitBreakers{
		Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: maxRequests(policy)}},
	}}
	m.balance(c, policy)
	switch mode := policy.TLS.GetMode(); {
	case mode != networking.ClientTLSSettings_DISABLE:
		m.report(m.ruleKey(), policy.Fields.TLS, fmt.Sprintf("gRPC clients cannot be told to use TLS of mode %s yet", mode),
			"use mode DISABLE, and credentials in the client's code", "gRPC clients do not reach it")
		byEDS(c, piece.BlackHoleCluster) // do not connect without encryption (I25)
	case hasEndpoints(m.service):
		byEDS(c, "")
	case m.service.Resolution == index.DNS, m.service.Resolution == index.DNSRoundRobin:
		return m.byName(c, port, labels)
	default:
		m.report(m.service.Key, "spec.resolution", "gRPC clients need endpoints", "use resolution STATIC or DNS", "gRPC clients do not reach it")
		return nil
	}
	return c
}

func byEDS(c *clusterv3.Cluster, assignment string) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: piece.FromADS(), ServiceName: assignment}
}

// byName lets the client resolve the endpoint's name: gRPC resolves one name
// only.
func (m *maker) byName(c *clusterv3.Cluster, port index.Port, labels map[string]string) *clusterv3.Cluster {
	names := slices.DeleteFunc(pointers(m.endpoints[port.Number]), func(e *index.Endpoint) bool {
		return !cluster.HasLabels(e, labels)
	})
	if len(names) != 1 || names[0].Port == 0 {
		m.report(m.service.Key, "spec.endpoints", fmt.Sprintf("gRPC clients can resolve one name, not the %d of %s", len(names), c.GetName()),
			"leave one of them, or use resolution STATIC", "gRPC clients do not reach it")
		return nil
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
	c.LoadAssignment = assignment(c.GetName(), names)
	return c
}

func maxRequests(policy traffic.Policy) *wrapperspb.UInt32Value {
	if n := policy.Pool.GetHttp().GetHttp2MaxRequests(); n > 0 {
		return wrapperspb.UInt32(uint32(n))
	}
	return wrapperspb.UInt32(math.MaxUint32) // the default of gRPC is 1024
}

// balance sets the load balancing that gRPC knows; its default is round robin.
func (m *maker) balance(c *clusterv3.Cluster, policy traffic.Policy) {
	unsupported := func(what string) {
		m.report(m.ruleKey(), policy.Fields.Balancer, "gRPC clients do not know "+what,
			"use ROUND_ROBIN, LEAST_REQUEST or ringHash", "gRPC clients use round robin")
	}
	if hash := policy.Balancer.GetConsistentHash(); hash != nil {
		if hash.GetMaglev() != nil {
			unsupported("maglev")
			return
		}
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		if size := hash.GetRingHash().GetMinimumRingSize(); size > 0 {
			c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
				MinimumRingSize: wrapperspb.UInt64(size),
			}}
		}
		return
	}
	switch simple := policy.Balancer.GetSimple(); simple {
	case networking.LoadBalancerSettings_LEAST_REQUEST, networking.LoadBalancerSettings_LEAST_CONN: //nolint:staticcheck // users still write it
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	case networking.LoadBalancerSettings_RANDOM, networking.LoadBalancerSettings_PASSTHROUGH:
		unsupported(simple.String())
	}
}

// assignments leaves out endpoints behind the gateways of other networks: those
// are called in Istio's mutual TLS only, which gRPC clients do not speak.
func (m *maker) assignments(view index.ServiceView) []piece.Piece {
	var pieces []piece.Piece
	m.each(func(name string, port index.Port, labels map[string]string, _ traffic.Policy) {
		chosen := slices.DeleteFunc(pointers(m.endpoints[port.Number]), func(e *index.Endpoint) bool {
			_, err := netip.ParseAddr(e.Address)
			return err != nil || e.Health != index.Healthy || !cluster.HasLabels(e, labels)
		})
		pieces = append(pieces, piece.Piece{Name: name, Message: assignment(name, cluster.See(chosen, view, nil))})
	})
	return pieces
}

func pointers(all []index.Endpoint) []*index.Endpoint {
	out := make([]*index.Endpoint, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// assignment adapts what Envoys get: gRPC needs an identity for each locality,
// even an empty one, and does not read metadata.
func assignment(name string, endpoints []*index.Endpoint) *endpointv3.ClusterLoadAssignment {
	a := cluster.Assignment(name, endpoints)
	for _, group := range a.GetEndpoints() {
		if group.GetLocality() == nil {
			group.Locality = &corev3.Locality{}
		}
		for _, lb := range group.GetLbEndpoints() {
			lb.Metadata = nil
		}
	}
	return a
}

func (m *maker) ruleKey() ident.Key {
	if len(m.ruleKeys) == 0 {
		return ident.Key{}
	}
	return m.ruleKeys[0]
}

// report adds a problem once: several ports and subsets may have it. It is
// informational: most meshes have no gRPC clients.
func (m *maker) report(key ident.Key, field, reason, advice, effect string) {
	d := problem.Diagnostic{
		Severity: problem.Info, Code: "unsupported", Key: key, Field: field, Reason: reason, Advice: advice, Effect: effect,
	}
	if !slices.Contains(m.problems, d) {
		m.problems = append(m.problems, d)
	}
}
