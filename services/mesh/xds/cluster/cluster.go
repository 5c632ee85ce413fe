// Package cluster makes the Clusters and ClusterLoadAssignments of services for
// Envoys and gRPC clients. The rows that it follows are in ../ROWS.md and
// ../../index/ROWS.md.
//
// It is pure.
package cluster

import (
	"errors"
	"slices"
	"strconv"
	"strings"

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
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// clusters is the part for the clusters of one service.
type clusters struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
	client  index.Client
	from    proxy.Certificates // where the client has its certificate of the mesh from
	ports   string             // that are imported, as onlyPorts has them
}

// Clusters returns the parts that a class gets by CDS.
func Clusters(r *index.Reader, class index.CDSClass) []piece.Part {
	services := r.Services(class.Scope)
	parts := make([]piece.Part, 0, len(services)+2)
	for _, s := range services {
		rule, _ := r.Rule(class.Scope, s.Namespace, s.Hostname)
		parts = append(parts, clusters{s.ServiceID, rule, class.Client, class.Certificates, onlyPorts(s)})
		if class.AutoPassthrough && PassedOn(s) {
			parts = append(parts, networkClusters{s.ServiceID, rule})
		}
	}
	switch {
	case class.Client == index.ClientSidecar:
		parts = append(parts, fixed{piece.BlackHoleCluster}, fixed{piece.PassthroughCluster}, fixed{piece.InboundPassthroughCluster}, fixed{piece.DynamicDNSCluster})
		for _, c := range class.Inbound.All() {
			parts = append(parts, inbound{c, class.Inbound.OnLoopback(), class.Ingress, class.Address})
		}
	case class.Client == index.ClientRouter && len(services) > 0:
		// A world without services has raw resources only, to which nothing is added.
		parts = append(parts, fixed{piece.BlackHoleCluster})
	}
	return parts
}

// onlyPorts returns the ports of a service that a Sidecar imports; empty: it imports all
// (SC-4).
func onlyPorts(s *index.Service) string {
	if !s.Partial {
		return ""
	}
	ports := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		ports[i] = strconv.FormatUint(uint64(p.Number), 10)
	}
	return strings.Join(ports, " ")
}

func (p clusters) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m == nil {
		return nil, nil
	}
	m.router, m.grpc, m.ports = p.client == index.ClientRouter, p.client == index.ClientGRPC, p.ports
	m.know(r, p.from)
	// A DNS cluster contains its endpoints (I19), and one of gRPC is encrypted only if all of
	// them demand it (MTLS-17).
	if m.byName() || m.grpc && m.identities.MutualTLS {
		m.endpoints = r.Endpoints(p.service)
		m.judge(r)
	}
	return m.clusters(), m.problems
}

// maker makes the clusters or the assignments of one service.
type maker struct {
	mesh      *meshconfig.MeshConfig
	service   *index.Service
	rule      *networking.DestinationRule // nil: none
	ruleKey   ident.Key                   // the first object that it was merged from
	endpoints index.Endpoints             // set only if the caller needs them
	view      index.ServiceView           // where the proxy is, for EDS
	gateways  *index.NetworkGateways      // nil: the view needs none
	router    bool
	grpc      bool
	ports     string // as in clusters

	// mutual: the client has a certificate of the mesh.
	mutual bool
	// Only Clusters of clients with certificates know the identities behind the service, and the trust
	// domains of the mesh.
	certificates proxy.Certificates
	identities   index.Identities
	trust        index.Trust
	peer         func(*index.Endpoint) index.PeerModes // nil: no PeerAuthentication counts

	problems []problem.Diagnostic
}

// newMaker returns nil if the service is gone.
func newMaker(r *index.Reader, service index.ServiceID, rule index.RuleID) *maker {
	m := &maker{service: r.Service(service)}
	if m.service == nil {
		return nil
	}
	m.mesh = r.Mesh()
	if rule != (index.RuleID{}) {
		var keys []ident.Key
		if m.rule, keys = r.DestinationRule(rule); len(keys) > 0 {
			m.ruleKey = keys[0]
		}
	}
	return m
}

// byName reports whether clients resolve the names of the service's endpoints.
func (m *maker) byName() bool {
	return m.service.Resolution == index.DNS || m.service.Resolution == index.DNSRoundRobin
}

// target is a port of the service, or a subset of the port's endpoints.
type target struct {
	name   string // of its cluster and assignment
	port   index.Port
	subset *networking.Subset // nil: all endpoints
	policy traffic.Policy
	// toNetwork: connections of other networks arrive here, in mutual TLS (GW-11).
	toNetwork bool
}

// each calls f for every port and for every subset of it (SVC-1, DR-4).
func (m *maker) each(f func(target)) {
	for _, port := range m.service.Ports {
		if m.grpc && !piece.TakesRequests(port.Protocol) || m.ports != "" && !slices.Contains(strings.Fields(m.ports), strconv.FormatUint(uint64(port.Number), 10)) {
			continue
		}
		f(target{piece.ClusterName(m.service.Hostname, "", port.Number), port, nil, traffic.Of(m.mesh, m.rule, port.Number), false})
		for i, s := range m.rule.GetSubsets() {
			name := piece.ClusterName(m.service.Hostname, s.GetName(), port.Number)
			f(target{name, port, s, traffic.OfSubset(m.mesh, m.rule, i, port.Number), false})
		}
	}
}

func (m *maker) clusters() []piece.Piece {
	var pieces []piece.Piece
	m.each(func(t target) {
		if c := m.cluster(t); c != nil {
			pieces = append(pieces, piece.Piece{Name: t.name, Message: c})
		}
	})
	return pieces
}

// cluster returns nil if there can be none.
func (m *maker) cluster(t target) *clusterv3.Cluster {
	if m.grpc {
		return m.grpcCluster(t)
	}
	c := &clusterv3.Cluster{
		Name:           t.name,
		ConnectTimeout: m.connectTimeout(t.policy.Pool),
		Metadata:       m.metadata(t.subset),
	}
	socket, err := m.transportSocket(t)
	if err != nil {
		m.failClosed(c, t.policy, err)
		return c
	}
	c.TransportSocket = socket
	if !m.discover(c, t) {
		return nil
	}
	if t.policy.TLS.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL {
		m.offerHTTP(c, t)
	}
	m.matchSockets(c, t)
	balance(c, t.policy)
	m.keepSessions(c, t)
	m.shareByLocality(c, t)
	m.localitiesByName(t)
	m.hashesConnections(t)
	limit(c, t.policy)
	keepAlive(c, m.mesh, t.policy.Pool)
	if options := m.httpOptions(t.port, t.policy); options != nil {
		c.TypedExtensionProtocolOptions = options
	}
	return c
}

// discover sets where a cluster gets its endpoints from, and reports whether
// there can be any.
func (m *maker) discover(c *clusterv3.Cluster, t target) bool {
	switch {
	// Connections go to the address that the caller chose (DR-10).
	case t.policy.Balancer.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH,
		m.service.Resolution == index.Passthrough && !m.headlessEDS():
		setType(c, clusterv3.Cluster_ORIGINAL_DST)
		// A targetPort replaces the port that the caller chose (SE-2).
		if t.port.Target != 0 && t.port.Target != t.port.Number && !m.service.Kubernetes {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(t.port.Target),
			}}
		}
	case m.service.Resolution == index.DynamicDNS:
		return m.callsOf(c, t)
	case m.byName():
		return m.resolve(c, t)
	default:
		byEDS(c, "")
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

// byEDS makes c wait for an assignment; "": for that of its own name.
func byEDS(c *clusterv3.Cluster, assignment string) {
	setType(c, clusterv3.Cluster_EDS)
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: piece.FromADS(), ServiceName: assignment}
}

// failClosed makes c a cluster without endpoints: what cannot be encrypted as
// the rule says is not sent at all (I25).
func (m *maker) failClosed(c *clusterv3.Cluster, policy traffic.Policy, why error) {
	setType(c, clusterv3.Cluster_STATIC)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName()}
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "unsupported", Key: m.ruleKey, Field: policy.Fields.TLS, Reason: why.Error(),
		Advice: "use mode SIMPLE or MUTUAL, or DISABLE",
		Effect: "the cluster has no endpoints, so that nothing is sent in plain text: requests get 503",
	}
	switch {
	case errors.Is(why, errUnselected): // routers send requests
		d.Severity, d.Advice = problem.Warning, "add a workloadSelector, or use files at sidecars"
	case errors.Is(why, errNoCertificates): // other proxies send requests
		d.Severity, d.Code, d.Advice = problem.Info, "no-certificate", "give such proxies an agent, the socket of SPIRE, or files"
		d.Effect = "their cluster has no endpoints, so that nothing is sent in plain text: requests get 503"
	}
	m.report(d)
}

// metadata names the rule and the subset of a cluster (DR-27). A rule that only
// has subsets is not named in the cluster of the whole service: subsets that
// come and go would make Envoy warm that cluster again.
func (m *maker) metadata(subset *networking.Subset) *corev3.Metadata {
	fields := map[string]*structpb.Value{}
	if m.ruleKey != (ident.Key{}) && (subset != nil || m.rule.GetTrafficPolicy() != nil) {
		fields["config"] = structpb.NewStringValue(
			"/apis/networking.istio.io/v1/namespaces/" + m.ruleKey.Namespace + "/destination-rule/" + m.ruleKey.Name)
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
	c := p.cluster(r.Mesh())
	if c == nil {
		return nil, nil
	}
	return []piece.Piece{{Name: p.name, Message: c}}, nil
}

// cluster returns nil if the mesh does not need it.
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
	case piece.DynamicDNSCluster:
		return m.unknownHosts(c)
	case piece.InboundPassthroughCluster:
		toWorkload(c)
		c.TypedExtensionProtocolOptions = packOptions(asCaller(nil))
	}
	return c
}

func percent(value float64) *typev3.Percent { return &typev3.Percent{Value: value} }
