package cluster

import (
	"cmp"
	"math"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	stringv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// defaultConnectTimeout holds if neither the rule nor the mesh sets one.
const defaultConnectTimeout = 10 * time.Second

func (m *maker) connectTimeout(pool *networking.ConnectionPoolSettings) *durationpb.Duration {
	for _, d := range []*durationpb.Duration{pool.GetTcp().GetConnectTimeout(), m.mesh.GetConnectTimeout()} {
		if d := positive(d); d != nil {
			return d
		}
	}
	return durationpb.New(defaultConnectTimeout)
}

// positive returns d, or nil if Envoy would reject it.
func positive(d *durationpb.Duration) *durationpb.Duration {
	if d.IsValid() && d.AsDuration() > 0 {
		return d
	}
	return nil
}

// limit sets the circuit breakers (DR-6, DR-7, DR-8). Without a limit in the
// rule there is none: Envoy's defaults would cut off retries while pods are
// replaced.
func limit(c *clusterv3.Cluster, policy traffic.Policy) {
	http := policy.Pool.GetHttp()
	thresholds := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     limitOf(policy.Pool.GetTcp().GetMaxConnections()),
		MaxPendingRequests: limitOf(http.GetHttp1MaxPendingRequests()),
		MaxRequests:        limitOf(http.GetHttp2MaxRequests()),
		MaxRetries:         limitOf(http.GetMaxRetries()),
		TrackRemaining:     true,
	}
	if budget := policy.RetryBudget; budget != nil {
		thresholds.MaxRetries = nil
		thresholds.RetryBudget = retryBudget(budget)
	}
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{thresholds}}
}

func limitOf(n int32) *wrapperspb.UInt32Value {
	if n > 0 {
		return wrapperspb.UInt32(uint32(n))
	}
	return wrapperspb.UInt32(math.MaxUint32)
}

func retryBudget(b *networking.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers_Thresholds_RetryBudget {
	budget := &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
		BudgetPercent:       percent(20),
		MinRetryConcurrency: wrapperspb.UInt32(3),
		BudgetInterval:      positive(b.GetBudgetInterval()),
	}
	if b.GetPercent() != nil {
		budget.BudgetPercent = percent(b.GetPercent().GetValue())
	}
	if n := b.GetMinRetryConcurrency(); n > 0 {
		budget.MinRetryConcurrency = wrapperspb.UInt32(n)
	}
	return budget
}

// keepAlive sets TCP keepalive from the rule, else from the mesh.
func keepAlive(c *clusterv3.Cluster, mesh *meshconfig.MeshConfig, pool *networking.ConnectionPoolSettings) {
	k := cmp.Or(pool.GetTcp().GetTcpKeepalive(), mesh.GetTcpKeepalive())
	if k == nil {
		return
	}
	keep := &corev3.TcpKeepalive{KeepaliveProbes: atLeastOne(k.GetProbes())}
	if d := positive(k.GetTime()); d != nil {
		keep.KeepaliveTime = atLeastOne(uint32(d.GetSeconds()))
	}
	if d := positive(k.GetInterval()); d != nil {
		keep.KeepaliveInterval = atLeastOne(uint32(d.GetSeconds()))
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keep}
}

func atLeastOne[N int32 | uint32](n N) *wrapperspb.UInt32Value {
	if n <= 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(n))
}

const httpOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func packOptions(o *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{httpOptionsKey: piece.Any(o)}
}

// httpOptions returns how endpoints are called in HTTP; nil: in HTTP/1.1 with
// Envoy's defaults.
func (m *maker) httpOptions(port index.Port, policy traffic.Policy) map[string]*anypb.Any {
	http := policy.Pool.GetHttp()
	var o *httpv3.HttpProtocolOptions
	set := true // whether o differs from the default
	switch {
	case m.upgrades(port, http):
		o = asHTTP2(http)
	case http.GetUseClientProtocol():
		o = asCaller(http)
	case port.Protocol.IsHTTP2():
		o = asHTTP2(http)
	case port.Protocol == index.Sniffed && !m.router: // a router's own port decides which protocol arrives
		o = asCaller(http)
	default:
		o, set = asHTTP1(), false
	}
	o.CommonHttpProtocolOptions = commonOptions(policy.Pool)
	o.UpstreamHttpProtocolOptions = m.automaticNames(policy.TLS)
	o.OutlierDetection = errorCodes(policy.Outliers)
	if !set && o.CommonHttpProtocolOptions == nil && o.UpstreamHttpProtocolOptions == nil && o.OutlierDetection == nil {
		return nil
	}
	return packOptions(o)
}

// upgrades reports whether HTTP/1.1 becomes HTTP/2 (DR-7). A rule may upgrade
// any port, the mesh only ports that are known to be HTTP.
func (m *maker) upgrades(port index.Port, http *networking.ConnectionPoolSettings_HTTPSettings) bool {
	switch http.GetH2UpgradePolicy() {
	case networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		return true
	case networking.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		return false
	}
	return port.Protocol.IsHTTP() && m.mesh.GetH2UpgradePolicy() == meshconfig.MeshConfig_UPGRADE
}

func asHTTP1() *httpv3.HttpProtocolOptions {
	return explicit(&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{},
	})
}

func asHTTP2(http *networking.ConnectionPoolSettings_HTTPSettings) *httpv3.HttpProtocolOptions {
	return explicit(&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: http2(http)},
	})
}

func explicit(c *httpv3.HttpProtocolOptions_ExplicitHttpConfig) *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: c},
	}
}

// asCaller calls endpoints in the protocol of the caller.
func asCaller(http *networking.ConnectionPoolSettings_HTTPSettings) *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
				Http2ProtocolOptions: http2(http),
			},
		},
	}
}

func http2(http *networking.ConnectionPoolSettings_HTTPSettings) *corev3.Http2ProtocolOptions {
	o := &corev3.Http2ProtocolOptions{MaxConcurrentStreams: atLeastOne(http.GetMaxConcurrentStreams())}
	if k := http.GetHttp2KeepAlive(); positive(k.GetInterval()) != nil && positive(k.GetTimeout()) != nil {
		o.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: k.GetInterval(), Timeout: k.GetTimeout()}
	}
	return o
}

// commonOptions returns the rule's limits for connections; those for HTTP win
// over those for TCP.
func commonOptions(pool *networking.ConnectionPoolSettings) *corev3.HttpProtocolOptions {
	o := &corev3.HttpProtocolOptions{
		IdleTimeout:              cmp.Or(pool.GetHttp().GetIdleTimeout(), pool.GetTcp().GetIdleTimeout()),
		MaxConnectionDuration:    pool.GetTcp().GetMaxConnectionDuration(),
		MaxRequestsPerConnection: atLeastOne(pool.GetHttp().GetMaxRequestsPerConnection()),
	}
	if o.GetIdleTimeout() == nil && o.GetMaxConnectionDuration() == nil && o.GetMaxRequestsPerConnection() == nil {
		return nil
	}
	return o
}

// errorCodes returns the answers that count as errors of an endpoint (DR-9);
// nil: 5xx.
func errorCodes(o *networking.OutlierDetection) *httpv3.HttpProtocolOptions_OutlierDetection {
	codes := o.GetOutlierDetectionHttpErrorCodes()
	if len(codes) == 0 {
		return nil
	}
	predicates := make([]*matcherv3.MatchPredicate, len(codes))
	for i, code := range codes {
		predicates[i] = statusIs(code)
	}
	match := predicates[0]
	if len(predicates) > 1 { // Envoy wants at least two in a set
		match = &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_OrMatch{
			OrMatch: &matcherv3.MatchPredicate_MatchSet{Rules: predicates},
		}}
	}
	return &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: match}
}

func statusIs(code uint32) *matcherv3.MatchPredicate {
	exact := &stringv3.StringMatcher{MatchPattern: &stringv3.StringMatcher_Exact{Exact: strconv.FormatUint(uint64(code), 10)}}
	return &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
		HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
			Name:                 ":status",
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: exact},
		}}},
	}}
}
