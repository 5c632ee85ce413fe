package cluster

import (
	"fmt"
	"math/big"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds/traffic"
)

// balance sets how an endpoint is chosen, and which are left out (DR-9 to
// DR-12).
func (m *maker) balance(c *clusterv3.Cluster, policy traffic.Policy) {
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.OutlierDetection = outlierDetection(policy.Outliers)
		return
	}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: percent(float64(panicThreshold(policy.Outliers))),
	}
	c.OutlierDetection = outlierDetection(policy.Outliers)
	m.unsupportedBalancing(policy)

	b := policy.Balancer
	if hash := b.GetConsistentHash(); hash != nil {
		m.hash(c, hash, policy.Fields.Balancer)
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

// panicThreshold is the percentage of healthy endpoints below which the others
// are used too. Envoy's own is 50; here it is none unless a rule says it, so
// that endpoints may be sent that are not ready (EPS-2, I17).
func panicThreshold(o *networking.OutlierDetection) int32 {
	return within(o.GetMinHealthPercent(), 0, 100)
}

// Ring sizes: Istio's default, and the largest that Envoy takes.
const (
	defaultRing = 1024
	maxRing     = 8 << 20
	maxTable    = 5_000_011
)

// hash sets consistent hashing (DR-11); what is hashed stands in the routes.
func (m *maker) hash(c *clusterv3.Cluster, hash *networking.LoadBalancerSettings_ConsistentHashLB, field string) {
	if maglev := hash.GetMaglev(); maglev != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		size := maglev.GetTableSize()
		switch {
		case size == 0:
		case size > maxTable || !new(big.Int).SetUint64(size).ProbablyPrime(0):
			m.reportRule(model.Diagnostic{
				Severity: model.Error, Code: "invalid", Field: field + ".consistentHash.maglev.tableSize",
				Reason: fmt.Sprintf("%d is not a prime number up to %d", size, maxTable), Advice: "use one, such as 65537",
				Effect: "Envoy's default of 65537 counts",
			})
		default:
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(size)}}
		}
		return
	}
	size := hash.GetRingHash().GetMinimumRingSize()
	if hash.GetRingHash() == nil {
		size = hash.GetMinimumRingSize()
	}
	switch {
	case size == 0:
		size = defaultRing
	case size > maxRing:
		m.reportRule(model.Diagnostic{
			Severity: model.Error, Code: "invalid", Field: field + ".consistentHash.ringHash.minimumRingSize",
			Reason: fmt.Sprintf("%d is more than %d, the largest that Envoy takes", size, maxRing), Advice: "make it smaller",
			Effect: fmt.Sprintf("%d counts", maxRing),
		})
		size = maxRing
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(size),
	}}
}

// slowStart is how the share of a new endpoint grows (DR-12); nil: it has its
// share at once.
func slowStart(b *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	w := b.GetWarmup()
	if w == nil {
		window := positive(b.GetWarmupDurationSecs())
		if window == nil {
			return nil
		}
		return &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: window}
	}
	if positive(w.GetDuration()) == nil {
		return nil
	}
	s := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: w.GetDuration()}
	if w.GetMinimumPercent() != nil {
		s.MinWeightPercent = percent(within(w.GetMinimumPercent().GetValue(), 0, 100))
	}
	if a := w.GetAggression().GetValue(); a > 0 {
		s.Aggression = &corev3.RuntimeDouble{DefaultValue: a, RuntimeKey: "upstream.slow_start_aggression"}
	}
	return s
}

// outlierDetection is when an endpoint that fails is left out for a while.
func outlierDetection(o *networking.OutlierDetection) *clusterv3.OutlierDetection {
	if o == nil {
		return nil
	}
	// By share of success nothing is left out: small clusters would suffer.
	d := &clusterv3.OutlierDetection{EnforcingSuccessRate: wrapperspb.UInt32(0)}
	if n := o.GetConsecutive_5XxErrors(); n != nil {
		d.Consecutive_5Xx, d.EnforcingConsecutive_5Xx = wrapperspb.UInt32(n.GetValue()), enforceIf(n.GetValue() > 0)
	}
	if n := o.GetConsecutiveGatewayErrors(); n != nil {
		d.ConsecutiveGatewayFailure, d.EnforcingConsecutiveGatewayFailure = wrapperspb.UInt32(n.GetValue()), enforceIf(n.GetValue() > 0)
	}
	d.Interval, d.BaseEjectionTime = positive(o.GetInterval()), positive(o.GetBaseEjectionTime())
	if n := o.GetMaxEjectionPercent(); n > 0 {
		d.MaxEjectionPercent = wrapperspb.UInt32(uint32(min(n, 100)))
	}
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

// unsupportedBalancing reports what a rule says to no effect.
func (m *maker) unsupportedBalancing(policy traffic.Policy) {
	for _, setting := range []struct {
		field string
		set   bool
	}{
		{"localityLbSetting", policy.Balancer.GetLocalityLbSetting() != nil},
		{"zoneAwareLbSetting", policy.Balancer.GetZoneAwareLbSetting() != nil},
	} {
		if setting.set {
			m.reportRule(model.Diagnostic{
				Severity: model.Warning, Code: "unsupported", Field: policy.Fields.Balancer + "." + setting.field,
				Reason: "locality aware load balancing is not supported yet", Advice: "remove it",
				Effect: "endpoints of all localities are used alike",
			})
		}
	}
}

func within[T int32 | float64](n, low, high T) T { return max(low, min(n, high)) }
