package cluster

import (
	"cmp"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
)

// assignments is the part for the ClusterLoadAssignments of one service. If a
// policy makes a cluster something else than EDS, no client asks for its
// assignment.
type assignments struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
	view    index.ServiceView
	grpc    bool
	mutual  bool   // clients have a certificate of the mesh
	ports   string // as in clusters
}

// Endpoints returns the parts that a class gets by EDS.
func Endpoints(r *index.Reader, class index.EDSClass) []piece.Part {
	services, views := r.Services(class.Scope), r.Views(class.View)
	parts := make([]piece.Part, 0, len(services)+1)
	grpc := class.Client == index.ClientGRPC
	for _, s := range services {
		headless := s.Headless && class.Client != index.ClientSidecar // the others get their endpoints (SVC-3)
		if s.Resolution == index.Static || headless {
			rule, _ := r.Rule(class.Scope, s.Namespace, s.Hostname)
			view := views.Of(s.ServiceID)
			near := view
			near.Place = r.PlaceFor(class.View.Place, s, rule)
			parts = append(parts, assignments{s.ServiceID, rule, near, grpc, class.Mutual, onlyPorts(s)})
			if class.AutoPassthrough && PassedOn(s) {
				parts = append(parts, networkAssignments{s.ServiceID, rule, view})
			}
		}
	}
	if grpc && len(parts) > 0 {
		parts = append(parts, nothing{})
	}
	return parts
}

func (p assignments) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m == nil {
		return nil, nil
	}
	m.endpoints, m.view, m.grpc, m.mutual, m.ports = r.Endpoints(p.service), p.view, p.grpc, p.mutual, p.ports
	m.judge(r)
	// Gateways between networks need mutual TLS of the mesh, with a server name that gRPC
	// clients do not send.
	if m.view.Through != "" && m.mutual && !m.grpc {
		m.gateways = r.NetworkGateways()
	}
	return m.assignments(), m.problems
}

// assignments returns an assignment for every target, also without endpoints:
// Envoy keeps the endpoints of an assignment that is left out (I16).
func (m *maker) assignments() []piece.Piece {
	pieces := make([]piece.Piece, 0, len(m.service.Ports)*(1+len(m.rule.GetSubsets())))
	m.each(func(t target) {
		a := m.nearby(t, See(m.choose(t), m.view, m.gateways))
		if m.grpc {
			adapt(a)
		}
		pieces = append(pieces, piece.Piece{Name: t.name, Message: a})
	})
	return pieces
}

// choose returns the endpoints that clients of a target get. Unhealthy ones are
// sent if Envoy has no panic mode, in which it would use them, or if a client's
// session may be bound to one (EPS-2). Draining ones are sent in the latter case
// only (EPS-1).
func (m *maker) choose(t target) []*index.Endpoint {
	if m.grpc {
		return m.endpointsOf(t, forGRPC)
	}
	sessions := m.service.Sticky()
	noPanic := t.policy.Outliers.GetMinHealthPercent() == 0
	return m.endpointsOf(t, func(e *index.Endpoint) bool {
		return sessions || e.Health == index.Healthy || e.Health == index.Unhealthy && noPanic
	})
}

// endpointsOf returns the endpoints of a target that use accepts and that clients can
// call. MutualTLS says of each whether they call it in that.
func (m *maker) endpointsOf(t target, use func(*index.Endpoint) bool) []*index.Endpoint {
	all, labels := m.endpoints[t.port.Number], t.subset.GetLabels()
	chosen := make([]*index.Endpoint, 0, len(all))
	encrypted := m.grpc && m.encrypted(t)
	for i := range all {
		e := &all[i]
		if !hasLabels(e, labels) || !use(e) || m.onOtherNode(e) {
			continue
		}
		switch {
		case m.grpc && !encrypted && m.refused(t, e):
			m.reportRefused(e)
			continue
		case m.grpc || !e.MutualTLS || m.speaks(t, e):
		case m.refused(t, e):
			m.reportRefused(e)
			continue
		default:
			plain := *e
			plain.MutualTLS = false
			e = &plain
		}
		chosen = append(chosen, e)
	}
	return chosen
}

// onOtherNode reports whether an endpoint is not to be called from the node of m.view
// (SVC-10). A proxy whose node is unknown calls the endpoints of all nodes.
func (m *maker) onOtherNode(e *index.Endpoint) bool {
	return m.service.NodeLocal && m.view.Place.Node != "" && e.Node != m.view.Place.Node
}

// has reports whether the service has such an endpoint, also one that refuses this client.
func (m *maker) has(t target, use func(*index.Endpoint) bool) bool {
	return slices.ContainsFunc(m.endpoints[t.port.Number], func(e index.Endpoint) bool {
		return hasLabels(&e, t.subset.GetLabels()) && use(&e)
	})
}

func hasLabels(e *index.Endpoint, labels map[string]string) bool {
	for name, value := range labels {
		if v, ok := e.Labels[name]; !ok || v != value {
			return false
		}
	}
	return true
}

// assignment returns a ClusterLoadAssignment with these endpoints, grouped by
// locality and sorted (LOC-4, EPB-1). rank says how far each is (LOC-2), from 0; nil: all are
// near. Endpoints of a rank are one priority. It sorts the slice.
func assignment(name string, endpoints []*index.Endpoint, rank func(*index.Endpoint) int) *endpointv3.ClusterLoadAssignment {
	if rank == nil {
		rank = func(*index.Endpoint) int { return 0 }
	}
	slices.SortStableFunc(endpoints, func(a, b *index.Endpoint) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), compareLocalities(a.Locality, b.Locality))
	})
	scale := weightScale(endpoints)
	a := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	var group *endpointv3.LocalityLbEndpoints
	priority := uint32(0) // Envoy wants no gaps
	for i, e := range endpoints {
		further := group != nil && rank(endpoints[i-1]) != rank(e)
		if further {
			priority++
		}
		if group == nil || further || endpoints[i-1].Locality != e.Locality {
			group = &endpointv3.LocalityLbEndpoints{Locality: locality(e.Locality), LoadBalancingWeight: wrapperspb.UInt32(0), Priority: priority}
			a.Endpoints = append(a.Endpoints, group)
		}
		weight := scale(e.Weight)
		group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(e, weight))
		group.LoadBalancingWeight.Value += weight
	}
	return a
}

func compareLocalities(a, b proxy.Locality) int {
	if a == b {
		return 0
	}
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.SubZone, b.SubZone))
}

// weightScale returns a function that scales weights so that their sum fits
// into the 32 bits that Envoy allows, and each is at least 1 (I21).
func weightScale(endpoints []*index.Endpoint) func(uint32) uint32 {
	var sum uint64
	for _, e := range endpoints {
		sum += uint64(max(e.Weight, 1))
	}
	if sum <= math.MaxUint32 {
		return func(w uint32) uint32 { return max(w, 1) }
	}
	room := math.MaxUint32 - uint64(len(endpoints)) // each may be rounded up to 1
	return func(w uint32) uint32 { return max(uint32(uint64(w)*room/sum), 1) }
}

func locality(l proxy.Locality) *corev3.Locality {
	if l == (proxy.Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
}

const unixScheme = "unix://"

func lbEndpoint(e *index.Endpoint, weight uint32) *endpointv3.LbEndpoint {
	lb := &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(e)}},
		Metadata:       endpointMetadata(e),
	}
	switch e.Health {
	case index.Unhealthy:
		lb.HealthStatus = corev3.HealthStatus_UNHEALTHY
	case index.Draining:
		lb.HealthStatus = corev3.HealthStatus_DRAINING
	}
	if weight != 1 { // Envoy's default
		lb.LoadBalancingWeight = wrapperspb.UInt32(weight)
	}
	return lb
}

func address(e *index.Endpoint) *corev3.Address {
	if path, ok := strings.CutPrefix(e.Address, unixScheme); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: e.Address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: e.Port},
	}}}
}

// endpointMetadata says by which transport socket clients call the endpoint (DR-19), and
// names the workload as Istio does, for access logs (EPS-6):
// name;namespace;canonical name;canonical revision;cluster.
func endpointMetadata(e *index.Endpoint) *corev3.Metadata {
	all := make(map[string]*structpb.Struct, 2)
	if e.MutualTLS {
		all[socketMatch] = &structpb.Struct{Fields: map[string]*structpb.Value{modeKey: structpb.NewStringValue(mutualMode)}}
	}
	if e.Workload != "" {
		name := firstLabel(e.Labels, e.Workload, "service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
		revision := firstLabel(e.Labels, "latest", "service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")
		text := e.Workload + ";" + e.WorkloadNamespace + ";" + name + ";" + revision + ";" + e.ClusterID
		all["istio"] = &structpb.Struct{Fields: map[string]*structpb.Value{"workload": structpb.NewStringValue(text)}}
	}
	if len(all) == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: all}
}

func firstLabel(labels map[string]string, otherwise string, names ...string) string {
	for _, name := range names {
		if v := labels[name]; v != "" {
			return v
		}
	}
	return otherwise
}
