package cluster

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// networkClusters is the part for the clusters of one service to which a gateway passes
// connections of other networks on (GW-11). They stay encrypted: the gateway reads only the
// server name that clients ask for, which is the name of the cluster.
type networkClusters struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
}

// networkAssignments is the part for the endpoints of these clusters.
type networkAssignments struct {
	service index.ServiceID
	rule    index.RuleID // zero: none
	view    index.ServiceView
}

// PassedOn reports whether gateways between networks have clusters for a service: one whose
// endpoints come by EDS. Envoy matches no server name with a wildcard within it.
func PassedOn(s *index.Service) bool {
	return !s.External && !strings.HasPrefix(s.Hostname, "*") && (s.Resolution == index.Static || s.Headless)
}

func (p networkClusters) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m == nil {
		return nil, nil
	}
	return m.networkClusters(), nil
}

func (m *maker) networkClusters() []piece.Piece {
	var pieces []piece.Piece
	m.eachOfNetwork(func(t target) {
		c := &clusterv3.Cluster{Name: t.name, ConnectTimeout: m.connectTimeout(t.policy.Pool), Metadata: m.metadata(t.subset)}
		byEDS(c, "")
		balance(c, t.policy)
		limit(c, t.policy)
		keepAlive(c, m.mesh, t.policy.Pool)
		pieces = append(pieces, piece.Piece{Name: t.name, Message: c})
	})
	return pieces
}

// eachOfNetwork calls f for every port and for every subset of it.
func (m *maker) eachOfNetwork(f func(target)) {
	m.each(func(t target) {
		t.name, t.toNetwork = piece.ServerName(m.service.Hostname, t.subset.GetName(), t.port.Number), true
		t.policy = traffic.Policy{Pool: t.policy.Pool, Outliers: t.policy.Outliers, Balancer: t.policy.Balancer}
		// A gateway is called by its own address, and hashes nothing of a request.
		if b := t.policy.Balancer; b.GetConsistentHash() != nil || b.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
			t.policy.Balancer = nil
		}
		f(t)
	})
}

func (p networkAssignments) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	m := newMaker(r, p.service, p.rule)
	if m == nil {
		return nil, nil
	}
	m.endpoints, m.view = r.Endpoints(p.service), p.view
	m.judge(r)
	return m.networkAssignments(), nil
}

// networkAssignments returns the endpoints of the gateway's own network that speak mutual TLS
// of the mesh. A connection that came from another network is not sent to a further one.
func (m *maker) networkAssignments() []piece.Piece {
	var pieces []piece.Piece
	m.eachOfNetwork(func(t target) {
		near := m.choose(t)
		mutual := near[:0]
		for _, e := range near {
			if e.MutualTLS {
				mutual = append(mutual, e)
			}
		}
		pieces = append(pieces, piece.Piece{Name: t.name, Message: assignment(t.name, See(mutual, m.view, nil), nil)})
	})
	return pieces
}
