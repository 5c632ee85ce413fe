package cluster

import (
	"cmp"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// balance sets the load balancing of a cluster and which endpoints it leaves
// out (DR-9 to DR-12).
func balance(c *clusterv3.Cluster, policy traffic.Policy) {
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST || resolvesCalls(c) {
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.OutlierDetection = outlierDetection(policy.Outliers)
		return
	}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		// Envoy's default is 50. Here it is 0 unless a rule sets it, so that
		// unhealthy endpoints can be sent without getting requests (EPS-2, I17).
		HealthyPanicThreshold: percent(float64(policy.Outliers.GetMinHealthPercent())),
	}
	c.OutlierDetection = outlierDetection(policy.Outliers)

	b := policy.Balancer
	if b.GetConsistentHash() != nil {
		hash(c, b.GetConsistentHash())
		return
	}
	switch b.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if s := slowStart(b); s != nil {
			c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: s}}
		}
	default:
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if s := slowStart(b); s != nil {
			c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: s}}
		}
	}
}

// defaultRing is the minimum size of a ring if the rule sets none.
const defaultRing = 1024

// hash sets consistent hashing (DR-11). What is hashed is part of the routes.
func hash(c *clusterv3.Cluster, by *networking.LoadBalancerSettings_ConsistentHashLB) {
	if by.GetMaglev() != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		if size := by.GetMaglev().GetTableSize(); size > 0 {
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(size)}}
		}
		return
	}
	size := by.GetRingHash().GetMinimumRingSize()
	if by.GetRingHash() == nil {
		size = by.GetMinimumRingSize() //nolint:staticcheck // users still write it
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(cmp.Or(size, defaultRing)),
	}}
}

// hashesConnections reports a rule that hashes a part of requests on a port without requests
// (DR-11).
func (m *maker) hashesConnections(t target) {
	by := t.policy.Balancer.GetConsistentHash()
	if by == nil || by.GetUseSourceIp() || piece.TakesRequests(t.port.Protocol) {
		return
	}
	m.report(problem.Diagnostic{
		Severity: problem.Warning, Code: "no-effect", Key: m.ruleKey, Field: "spec." + t.policy.Fields.Balancer + ".consistentHash",
		Reason: fmt.Sprintf("proxies see no requests on port %d, so there is no header, cookie or query parameter to hash", t.port.Number),
		Advice: "hash connections with useSourceIp: true, in portLevelSettings if other ports have requests",
		Effect: "connections to the port go to endpoints at random",
	})
}

// slowStart returns how the share of a new endpoint grows (DR-12); nil: it has
// its full share at once.
func slowStart(b *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	w := b.GetWarmup()
	window := w.GetDuration()
	if w == nil {
		window = b.GetWarmupDurationSecs()
	}
	if positive(window) == nil {
		return nil
	}
	s := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: window}
	if w.GetMinimumPercent() != nil {
		s.MinWeightPercent = percent(w.GetMinimumPercent().GetValue())
	}
	if a := w.GetAggression().GetValue(); a > 0 {
		s.Aggression = &corev3.RuntimeDouble{DefaultValue: a, RuntimeKey: "upstream.slow_start_aggression"}
	}
	return s
}

// outlierDetection returns when a failing endpoint is left out for a while
// (DR-9).
func outlierDetection(o *networking.OutlierDetection) *clusterv3.OutlierDetection {
	if o == nil {
		return nil
	}
	// Nothing is ejected by its rate of successes: small clusters would suffer.
	d := &clusterv3.OutlierDetection{EnforcingSuccessRate: wrapperspb.UInt32(0)}
	if n := o.GetConsecutive_5XxErrors(); n != nil {
		d.Consecutive_5Xx, d.EnforcingConsecutive_5Xx = wrapperspb.UInt32(n.GetValue()), enforceIf(n.GetValue() > 0)
	}
	if n := o.GetConsecutiveGatewayErrors(); n != nil {
		d.ConsecutiveGatewayFailure, d.EnforcingConsecutiveGatewayFailure = wrapperspb.UInt32(n.GetValue()), enforceIf(n.GetValue() > 0)
	}
	d.Interval, d.BaseEjectionTime = positive(o.GetInterval()), positive(o.GetBaseEjectionTime())
	d.MaxEjectionPercent = atLeastOne(o.GetMaxEjectionPercent())
	if o.GetSplitExternalLocalOriginErrors() {
		d.SplitExternalLocalOriginErrors = true
		d.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
		if n := o.GetConsecutiveLocalOriginFailures().GetValue(); n > 0 {
			d.ConsecutiveLocalOriginFailure, d.EnforcingConsecutiveLocalOriginFailure = wrapperspb.UInt32(n), enforceIf(true)
		}
	}
	return d
}

func enforceIf(yes bool) *wrapperspb.UInt32Value {
	if yes {
		return wrapperspb.UInt32(100)
	}
	return wrapperspb.UInt32(0)
}
