package listener

import (
	"cmp"
	"math"
	"slices"
	"time"

	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/traffic"
)

// defaultIdle is when Envoy closes an idle connection if nothing sets another time.
const defaultIdle = time.Hour

// shaped returns the MeshConfig if its defaultTrafficPolicy says something about connections
// (DR-25), and else nil. Filter chains are not to depend on a MeshConfig that does not.
func shaped(mesh *meshconfig.MeshConfig) *meshconfig.MeshConfig {
	tcp := mesh.GetDefaultTrafficPolicy().GetConnectionPool().GetTcp()
	if tcp.GetIdleTimeout() == nil && tcp.GetMaxConnectionDuration() == nil {
		return nil
	}
	return mesh
}

// policyOf returns the policy of a port. with: the MeshConfig says something about connections.
func policyOf(r *index.Reader, with bool, rule *networking.DestinationRule, port uint32) traffic.Policy {
	if !with {
		return traffic.Of(nil, rule, port)
	}
	return traffic.Of(r.Mesh(), rule, port)
}

// shape sets how long the connections to some destinations last (DR-6), and that the
// caller's address chooses the endpoint (DR-11), as the policies of the destinations say.
// Envoy has one of each for all destinations of a route: the shortest counts, and shape
// returns whether all have the same. A limit that m has already stays if it is shorter.
func shape(m *tcpv3.TcpProxy, policies ...traffic.Policy) (same bool) {
	var idle, longest []*durationpb.Duration
	for _, p := range policies {
		tcp := p.Pool.GetTcp()
		idle, longest = append(idle, tcp.GetIdleTimeout()), append(longest, tcp.GetMaxConnectionDuration())
		if p.Balancer.GetConsistentHash().GetUseSourceIp() {
			m.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
		}
	}
	m.IdleTimeout, same = shortest(idle, defaultIdle)
	limit, alike := shortest(longest, math.MaxInt64)
	if limit != nil {
		m.MaxDownstreamConnectionDuration, _ = shortest([]*durationpb.Duration{m.GetMaxDownstreamConnectionDuration(), limit}, math.MaxInt64)
	}
	return same && alike
}

// shortest returns the shortest time, and whether all are alike. 0 is for ever, and nil
// stands for unset.
func shortest(all []*durationpb.Duration, unset time.Duration) (*durationpb.Duration, bool) {
	last := func(d *durationpb.Duration) time.Duration {
		switch {
		case d == nil:
			return unset
		case d.AsDuration() == 0:
			return math.MaxInt64
		}
		return d.AsDuration()
	}
	compare := func(a, b *durationpb.Duration) int { return cmp.Compare(last(a), last(b)) }
	least := slices.MinFunc(all, compare)
	return least, compare(least, slices.MaxFunc(all, compare)) == 0
}
