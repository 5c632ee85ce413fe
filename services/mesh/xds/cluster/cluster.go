// Package cluster makes the Clusters and ClusterLoadAssignments of services for
// Envoys. The rows that it follows are in ../ROWS.md and ../../index/ROWS.md.
//
// It is pure.
package cluster

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// clusters is the part for the clusters of one service: one for each port, and
// one for each port and subset.
type clusters struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
	router  bool
}

// Clusters returns the parts that Envoys of a class get by CDS.
func Clusters(r *index.Reader, class index.CDSClass) []piece.Part {
	services := r.Services(class.Scope)
	router := class.Client == index.ClientRouter
	parts := make([]piece.Part, 0, len(services)+2)
	for _, s := range services {
		rule, _ := r.Rule(class.Scope, s.Namespace, s.Hostname)
		parts = append(parts, clusters{s.ServiceID, rule, router})
	}
	switch {
	case !router:
		parts = append(parts, fixed{piece.BlackHoleCluster}, fixed{piece.PassthroughCluster})
	case len(services) > 0:
		// A world without services has raw resources only, to which nothing is added.
		parts = append(parts, fixed{piece.BlackHoleCluster})
	}
	return parts
}

func (p clusters) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(p.service)
	if s == nil {
		return nil, nil
	}
	m := maker{mesh: r.Mesh(), service: s, router: p.router}
	if p.rule != (index.RuleID{}) {
		m.rule, m.ruleKeys = r.DestinationRule(p.rule)
	}
	if s.Resolution == index.DNS || s.Resolution == index.DNSRoundRobin {
		m.endpoints = r.Endpoints(p.service) // a DNS cluster contains its endpoints (I19)
	}
	return m.clusters(), m.problems
}

// maker makes the clusters of one service.
type maker struct {
	mesh      *meshconfig.MeshConfig
	service   *index.Service
	rule      *networking.DestinationRule // nil: none
	ruleKeys  []ident.Key                 // the objects that it was merged from
	endpoints index.Endpoints             // set only if the caller needs them
	view      index.ServiceView           // where the proxy is, for EDS
	gateways  *index.NetworkGateways      // nil: the view needs none
	router    bool

	problems []problem.Diagnostic
}

func (m *maker) clusters() []piece.Piece {
	if m.service.Resolution == index.DynamicDNS { // a host that each request names is not supported yet (SE-8)
		return nil
	}
	var pieces []piece.Piece
	add := func(c *clusterv3.Cluster) {
		if c != nil {
			pieces = append(pieces, piece.Piece{Name: c.GetName(), Message: c})
		}
	}
	for _, port := range m.service.Ports {
		add(m.cluster(port, nil, traffic.Of(m.mesh, m.rule, port.Number)))
		for i, subset := range m.rule.GetSubsets() {
			add(m.cluster(port, subset, traffic.OfSubset(m.mesh, m.rule, i, port.Number)))
		}
	}
	return pieces
}

// cluster returns the cluster of a port and, unless subset is nil, of a subset
// (SVC-1, DR-4). It returns nil if there can be none.
func (m *maker) cluster(port index.Port, subset *networking.Subset, policy traffic.Policy) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:           piece.ClusterName(m.service.Hostname, subset.GetName(), port.Number),
		ConnectTimeout: m.connectTimeout(policy.Pool),
		Metadata:       m.metadata(subset),
	}
	socket, err := m.transportSocket(port, policy)
	if err != nil {
		m.failClosed(c, policy, err)
		return c
	}
	c.TransportSocket = socket
	if !m.discover(c, port, subset, policy) {
		return nil
	}
	balance(c, policy)
	limit(c, policy)
	keepAlive(c, m.mesh, policy.Pool)
	if options := m.httpOptions(port, policy); options != nil {
		c.TypedExtensionProtocolOptions = options
	}
	return c
}

// discover sets where a cluster gets its endpoints from.
func (m *maker) discover(c *clusterv3.Cluster, port index.Port, subset *networking.Subset, policy traffic.Policy) bool {
	switch {
	case policy.Balancer.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH, // connections go to the address that the caller chose (DR-10)
		m.service.Resolution == index.Passthrough && !m.headlessEDS():
		setType(c, clusterv3.Cluster_ORIGINAL_DST)
		if port.Target != 0 && port.Target != port.Number && !m.service.Kubernetes { // targetPort replaces the port that the caller chose (SE-2)
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(port.Target),
			}}
		}
	case m.service.Resolution == index.DNS, m.service.Resolution == index.DNSRoundRobin:
		return m.resolve(c, port, subset)
	default:
		setType(c, clusterv3.Cluster_EDS)
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: piece.FromADS()}
	}
	return true
}

// headlessEDS reports whether the endpoints of a headless service come by EDS.
// Callers of a router never choose an endpoint's address, so there is nothing
// to pass through (SVC-3).
func (m *maker) headlessEDS() bool { return m.router && m.service.Headless }

func setType(c *clusterv3.Cluster, t clusterv3.Cluster_DiscoveryType) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: t}
}

// failClosed makes c a cluster without endpoints: what cannot be encrypted as
// the rule says is not sent at all (I25).
func (m *maker) failClosed(c *clusterv3.Cluster, policy traffic.Policy, why error) {
	setType(c, clusterv3.Cluster_STATIC)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName()}
	m.report(problem.Diagnostic{
		Severity: problem.Error, Code: "unsupported", Key: m.ruleKeys[0], Field: policy.Fields.TLS, Reason: why.Error(),
		Advice: "use mode SIMPLE or MUTUAL with files, or DISABLE",
		Effect: "the cluster has no endpoints, so that nothing is sent in plain text: requests get 503",
	})
}

// metadata names the rule and the subset of a cluster (DR-27). A rule that only
// has subsets is not named in the cluster of the whole service: subsets that
// come and go would make Envoy warm that cluster again.
func (m *maker) metadata(subset *networking.Subset) *corev3.Metadata {
	fields := map[string]*structpb.Value{}
	if len(m.ruleKeys) > 0 && (subset != nil || m.rule.GetTrafficPolicy() != nil) {
		key := m.ruleKeys[0]
		fields["config"] = structpb.NewStringValue(
			"/apis/networking.istio.io/v1/namespaces/" + key.Namespace + "/destination-rule/" + key.Name)
	}
	if subset != nil {
		fields["subset"] = structpb.NewStringValue(subset.GetName())
	}
	if len(fields) == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
}

// report adds a problem once: several ports and subsets may have it.
func (m *maker) report(d problem.Diagnostic) {
	if !slices.Contains(m.problems, d) {
		m.problems = append(m.problems, d)
	}
}

// fixed is the part for a cluster that belongs to no service.
type fixed struct{ name string }

func (p fixed) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: p.name, Message: p.cluster(r.Mesh())}}, nil
}

func (p fixed) cluster(mesh *meshconfig.MeshConfig) *clusterv3.Cluster {
	m := maker{mesh: mesh}
	c := &clusterv3.Cluster{Name: p.name, ConnectTimeout: m.connectTimeout(nil)}
	switch p.name {
	case piece.BlackHoleCluster:
		setType(c, clusterv3.Cluster_STATIC)
	case piece.PassthroughCluster:
		setType(c, clusterv3.Cluster_ORIGINAL_DST)
		balance(c, traffic.Policy{})
		limit(c, traffic.Policy{})
		c.TypedExtensionProtocolOptions = packOptions(asCaller(nil))
	}
	return c
}

func percent(value float64) *typev3.Percent { return &typev3.Percent{Value: value} }
