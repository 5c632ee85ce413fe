package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/traffic"
)

// The labels that Kubernetes' distributions compare (SVC-11).
var (
	sameZone = &networking.LocalityLoadBalancerSetting{FailoverPriority: []string{index.NetworkLabel, index.RegionLabel, index.ZoneLabel}}
	sameNode = &networking.LocalityLoadBalancerSetting{
		FailoverPriority: []string{index.NetworkLabel, index.RegionLabel, index.ZoneLabel, index.SubZoneLabel, index.HostLabel},
	}
)

// localities returns which endpoints are near (DR-14): as the rule says, else the Service,
// else the mesh; nil: all alike. failover: clients call far endpoints only if near ones fail,
// which Envoy knows by outlier detection.
func (m *maker) localities(policy traffic.Policy) (setting *networking.LocalityLoadBalancerSetting, failover bool) {
	detects := policy.Outliers != nil
	own := policy.Balancer.GetLocalityLbSetting()
	switch {
	case own != nil:
		return enabled(own), detects
	case m.service.Distribution == index.PreferSameZone:
		return sameZone, true
	case m.service.Distribution == index.PreferSameNode:
		return sameNode, true
	}
	setting = m.mesh.GetLocalityLbSetting()
	if setting == nil {
		setting = &networking.LocalityLoadBalancerSetting{}
	}
	return enabled(setting), detects
}

func enabled(s *networking.LocalityLoadBalancerSetting) *networking.LocalityLoadBalancerSetting {
	if s.GetEnabled() != nil && !s.GetEnabled().GetValue() {
		return nil
	}
	return s
}

// shareByLocality makes a cluster share requests by the weights of localities (LOC-3).
func (m *maker) shareByLocality(c *clusterv3.Cluster, t target) {
	if c.GetCommonLbConfig() == nil || c.GetType() != clusterv3.Cluster_EDS {
		return
	}
	if setting, _ := m.localities(t.policy); len(setting.GetDistribute()) > 0 {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
}

// nearby returns the assignment for proxies at the place of m.view (LOC-2, LOC-3).
func (m *maker) nearby(t target, endpoints []*index.Endpoint) *endpointv3.ClusterLoadAssignment {
	setting, failover := m.localities(t.policy)
	at := m.view.Place
	own := t.policy.Balancer.GetLocalityLbSetting()
	if own != nil && setting != nil && !failover && len(setting.GetDistribute()) == 0 {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "no-effect", Key: m.ruleKey, Field: "spec." + t.policy.Fields.Balancer + ".localityLbSetting",
			Reason: "proxies find out that near endpoints fail by outlierDetection, and there is none", Advice: "add outlierDetection",
			Effect: "endpoints of all localities are used alike",
		})
	}
	switch {
	case setting == nil || at.Locality == (proxy.Locality{}) && at.Labels == "":
	case len(setting.GetDistribute()) > 0:
		a := assignment(t.name, endpoints, nil)
		m.distribute(a, at.Locality, setting.GetDistribute())
		return a
	case failover:
		return assignment(t.name, endpoints, func(e *index.Endpoint) int { return rank(setting, at, e) })
	}
	return assignment(t.name, endpoints, nil)
}

// rank returns how far an endpoint is from a place; 0 is nearest.
func rank(s *networking.LocalityLoadBalancerSetting, at index.Place, e *index.Endpoint) int {
	labels := s.GetFailoverPriority()
	if len(labels) == 0 {
		return distance(s, at.Locality, e.Locality)
	}
	far := len(labels)
	for _, entry := range labels {
		label, value, fixed := strings.Cut(entry, "=")
		if !fixed {
			value = at.Label(label)
		}
		if e.Label(label) != value {
			break
		}
		far--
	}
	if len(s.GetFailover()) == 0 {
		return far
	}
	return far*(furthest+1) + distance(s, at.Locality, e.Locality)
}

// furthest is the largest distance.
const furthest = 4

// distance compares localities (LOC-2): 0 for the same, 1 for another subzone, 2 for another
// zone, 3 for another region, and 4 for one that is not the region to fail over to.
func distance(s *networking.LocalityLoadBalancerSetting, from, to proxy.Locality) int {
	switch {
	case from == to:
		return 0
	case from.Region == to.Region && from.Zone == to.Zone:
		return 1
	case from.Region == to.Region:
		return 2
	}
	for _, f := range s.GetFailover() {
		if f.GetFrom() == from.Region && f.GetTo() != to.Region {
			return furthest
		}
		if f.GetFrom() == from.Region {
			break
		}
	}
	return 3
}

// sharesOf is the sum of the weights of localities, which are percentages in rules.
const sharesOf = 100

// distribute sets the weights of localities as the first rule for a locality says (LOC-3).
// Those that it does not name keep their entry without endpoints, except for gRPC clients,
// which take no such entry.
func (m *maker) distribute(a *endpointv3.ClusterLoadAssignment, from proxy.Locality, rules []*networking.LocalityLoadBalancerSetting_Distribute) {
	i := slices.IndexFunc(rules, func(r *networking.LocalityLoadBalancerSetting_Distribute) bool { return within(r.GetFrom(), from) })
	if i < 0 {
		return
	}
	to := rules[i].GetTo()
	patterns := slices.SortedFunc(maps.Keys(to), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	groups := map[string][]*endpointv3.LocalityLbEndpoints{}
	for _, group := range a.GetEndpoints() {
		at := slices.IndexFunc(patterns, func(p string) bool { return within(p, localityOf(group.GetLocality())) })
		if at < 0 || to[patterns[at]] == 0 {
			group.LbEndpoints, group.LoadBalancingWeight = nil, nil
			continue
		}
		groups[patterns[at]] = append(groups[patterns[at]], group)
	}
	for pattern, of := range groups {
		var sum uint64
		for _, group := range of {
			sum += uint64(group.GetLoadBalancingWeight().GetValue())
		}
		for _, group := range of {
			share := uint64(to[pattern]) * sharesOf * uint64(group.GetLoadBalancingWeight().GetValue()) / sum
			group.LoadBalancingWeight = wrapperspb.UInt32(uint32(max(share, 1)))
		}
	}
	if m.grpc {
		a.Endpoints = slices.DeleteFunc(a.GetEndpoints(), func(g *endpointv3.LocalityLbEndpoints) bool { return len(g.GetLbEndpoints()) == 0 })
	}
}

func localityOf(l *corev3.Locality) proxy.Locality {
	return proxy.Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()}
}

// within reports whether a locality is in a pattern such as *, eu, eu/eu-1 or eu/eu-1/*.
func within(pattern string, l proxy.Locality) bool {
	parts := append(strings.SplitN(pattern, "/", 3), "", "")
	is := func(part, name string) bool { return part == "*" || part == name }
	return is(parts[0], l.Region) && (parts[1] == "" || is(parts[1], l.Zone)) && (parts[2] == "" || is(parts[2], l.SubZone))
}

// localitiesByName reports a rule about localities for a service whose endpoints proxies find by
// DNS: their cluster is the same in all localities.
func (m *maker) localitiesByName(t target) {
	own := t.policy.Balancer.GetLocalityLbSetting()
	if own == nil || enabled(own) == nil || !m.byName() {
		return
	}
	m.report(problem.Diagnostic{
		Severity: problem.Warning, Code: "no-effect", Key: m.ruleKey, Field: "spec." + t.policy.Fields.Balancer + ".localityLbSetting",
		Reason: "the endpoints of " + m.service.Hostname + " are found by DNS, and proxies of all localities have the same",
		Advice: "write endpoints with addresses and resolution STATIC", Effect: "endpoints of all localities are used alike",
	})
}
