package validate

import (
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

const (
	maxRing   = defaultMaxRing // Envoy's maximum, which is not raised
	maxMaglev = 5000011
)

// DestinationRule checks a DestinationRule.
func DestinationRule(m proto.Message) []problem.Diagnostic {
	dr := m.(*networking.DestinationRule)
	c := checker{kind: "DestinationRule"}
	if dr.GetHost() != "*" {
		c.host(root.field("host"), dr.GetHost(), true)
	}
	c.trafficPolicy(root.field("trafficPolicy"), dr.GetTrafficPolicy())
	names := map[string]bool{}
	for i, s := range dr.GetSubsets() {
		at := root.field("subsets").item(i)
		name := at.field("name")
		c.errorIf(s.GetName() == "", name, "give the subset a name", isMissing)
		c.errorIf(!first(names, s.GetName()), name, "give each subset a name of its own", isTwice, s.GetName())
		c.subset(name, s.GetName())
		c.labels(at.field("labels"), s.GetLabels())
		c.trafficPolicy(at.field("trafficPolicy"), s.GetTrafficPolicy())
	}
	c.exportTo(root.field("exportTo"), dr.GetExportTo())
	c.labels(root.field("workloadSelector.matchLabels"), dr.GetWorkloadSelector().GetMatchLabels())
	return c.result()
}

func (c *checker) subset(at *fieldPath, name string) {
	c.errorIf(!isHostLabel(name), at, useName, "%q is not a subset name", name)
}

// portPolicy is the policy of a host, a subset or a port.
type portPolicy interface {
	GetLoadBalancer() *networking.LoadBalancerSettings
	GetConnectionPool() *networking.ConnectionPoolSettings
	GetOutlierDetection() *networking.OutlierDetection
	GetTls() *networking.ClientTLSSettings
}

func (c *checker) trafficPolicy(at *fieldPath, t *networking.TrafficPolicy) {
	if t == nil {
		return
	}
	c.portPolicy(at, t)
	seen := map[uint32]bool{}
	for i, p := range t.GetPortLevelSettings() {
		field := at.field("portLevelSettings").item(i)
		number := field.field("port.number")
		c.port(number, p.GetPort().GetNumber())
		if !first(seen, p.GetPort().GetNumber()) {
			c.errorf(number, "write the settings of one port into one entry", "%d is there twice", p.GetPort().GetNumber())
		}
		c.portPolicy(field, p)
	}
	if tunnel := t.GetTunnel(); tunnel != nil {
		field := at.field("tunnel")
		p := tunnel.GetProtocol()
		c.errorIf(p != "" && p != "CONNECT" && p != "POST", field.field("protocol"), "use CONNECT or POST", "%q is not a tunnel protocol", p)
		c.hostOrIP(field.field("targetHost"), tunnel.GetTargetHost(), false)
		c.port(field.field("targetPort"), tunnel.GetTargetPort())
		c.noEffect(true, field)
	}
	c.percent(at.field("retryBudget.percent"), t.GetRetryBudget().GetPercent().GetValue())
	c.orZero(at.field("retryBudget.budgetInterval"), t.GetRetryBudget().GetBudgetInterval())
}

func (c *checker) portPolicy(at *fieldPath, p portPolicy) {
	c.loadBalancer(at.field("loadBalancer"), p.GetLoadBalancer())
	c.connectionPool(at.field("connectionPool"), p.GetConnectionPool())
	c.outliers(at.field("outlierDetection"), p.GetOutlierDetection())
	c.clientTLS(at.field("tls"), p.GetTls())
}

func (c *checker) loadBalancer(at *fieldPath, lb *networking.LoadBalancerSettings) {
	if lb == nil {
		return
	}
	if _, known := networking.LoadBalancerSettings_SimpleLB_name[int32(lb.GetSimple())]; !known {
		c.errorf(at.field("simple"), "use LEAST_REQUEST, ROUND_ROBIN, RANDOM or PASSTHROUGH", "%d is not a load balancer", lb.GetSimple())
	}
	c.consistentHash(at.field("consistentHash"), lb.GetConsistentHash())
	c.localities(at.field("localityLbSetting"), lb.GetLocalityLbSetting())
	c.warmup(at, lb)
	c.noEffect(lb.GetZoneAwareLbSetting() != nil, at.field("zoneAwareLbSetting"))
}

func (c *checker) localities(at *fieldPath, s *networking.LocalityLoadBalancerSetting) {
	for i, d := range s.GetDistribute() {
		field := at.field("distribute").item(i)
		var sum uint64
		for _, w := range d.GetTo() {
			sum += uint64(w)
		}
		if sum != 100 {
			c.errorf(field.field("to"), weightsOf100, weightsAddUp, sum)
		}
	}
	if len(s.GetDistribute()) > 0 {
		c.errorIf(len(s.GetFailover()) > 0, at.field("failover"), keepOne, "does not go with distribute")
		c.errorIf(len(s.GetFailoverPriority()) > 0, at.field("failoverPriority"), keepOne, "does not go with distribute")
	}
}

func (c *checker) warmup(at *fieldPath, lb *networking.LoadBalancerSettings) {
	c.atLeast(at.field("warmupDurationSecs"), lb.GetWarmupDurationSecs(), time.Millisecond)
	w := lb.GetWarmup()
	if w == nil {
		return
	}
	field := at.field("warmup")
	c.errorIf(w.GetDuration() == nil, field.field("duration"), "write how long endpoints warm up", isMissing)
	c.atLeast(field.field("duration"), w.GetDuration(), time.Millisecond)
	c.percent(field.field("minimumPercent"), w.GetMinimumPercent().GetValue())
	if a := w.GetAggression(); a != nil && !(a.GetValue() >= 1) {
		c.errorf(field.field("aggression"), "use 1.0 or more", "%v is too little", a.GetValue())
	}
	if s := lb.GetSimple(); lb.GetConsistentHash() != nil || s == networking.LoadBalancerSettings_RANDOM || s == networking.LoadBalancerSettings_PASSTHROUGH {
		c.warnf(field, "use LEAST_REQUEST or ROUND_ROBIN with it, or remove it", "has no effect with this load balancer")
	}
}

func (c *checker) consistentHash(at *fieldPath, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	const advice = "write one of httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName"
	switch key := h.GetHashKey().(type) {
	case nil:
		c.errorf(at, advice, "names nothing to hash")
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		c.errorIf(!key.UseSourceIp, at.field("useSourceIp"), advice, "is false: there is nothing to hash")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.header(at.field("httpHeaderName"), key.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		c.errorIf(key.HttpQueryParameterName == "", at.field("httpQueryParameterName"), "name the parameter", isEmpty)
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c.hashCookie(at.field("httpCookie"), key.HttpCookie)
	}
	c.ringSize(at.field("ringHash.minimumRingSize"), h.GetRingHash().GetMinimumRingSize())
	c.ringSize(at.field("minimumRingSize"), h.GetMinimumRingSize()) //nolint:staticcheck // deprecated, and still in use
	if n := h.GetMaglev().GetTableSize(); n > maxMaglev {
		c.errorf(at.field("maglev.tableSize"), "use a prime up to 5000011", "%d is above Envoy's maximum", n)
	} else if n != 0 && !isPrime(n) {
		c.errorf(at.field("maglev.tableSize"), "use a prime such as 65537", "%d is not a prime number", n)
	}
}

func (c *checker) hashCookie(at *fieldPath, cookie *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) {
	c.errorIf(cookie.GetName() == "", at.field("name"), "name the cookie", isMissing)
	c.orZero(at.field("ttl"), cookie.GetTtl())
	for i, a := range cookie.GetAttributes() {
		name := at.field("attributes").item(i).field("name")
		c.errorIf(a.GetName() == "", name, "name the attribute, like SameSite", isMissing)
		c.errorIf(slices.ContainsFunc(cookie.GetAttributes()[:i], func(o *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie_Attribute) bool {
			return strings.EqualFold(o.GetName(), a.GetName())
		}), name, keepOne, isTwice, a.GetName())
		c.oneLine(name, a.GetName())
		c.oneLine(at.field("attributes").item(i).field("value"), a.GetValue())
	}
}

func (c *checker) ringSize(at *fieldPath, n uint64) {
	if n > maxRing {
		c.errorf(at, "use 8388608 or less", "%d is above Envoy's maximum", n)
	}
}

func (c *checker) connectionPool(at *fieldPath, p *networking.ConnectionPoolSettings) {
	tcp, t := at.field("tcp"), p.GetTcp()
	c.notNegative(tcp.field("maxConnections"), t.GetMaxConnections())
	c.atLeast(tcp.field("connectTimeout"), t.GetConnectTimeout(), time.Millisecond)
	c.atLeast(tcp.field("maxConnectionDuration"), t.GetMaxConnectionDuration(), time.Millisecond)
	c.orZero(tcp.field("idleTimeout"), t.GetIdleTimeout())
	c.keepAlive(tcp.field("tcpKeepalive"), t.GetTcpKeepalive())

	http, h := at.field("http"), p.GetHttp()
	c.notNegative(http.field("http1MaxPendingRequests"), h.GetHttp1MaxPendingRequests())
	c.notNegative(http.field("http2MaxRequests"), h.GetHttp2MaxRequests())
	c.notNegative(http.field("maxRequestsPerConnection"), h.GetMaxRequestsPerConnection())
	c.notNegative(http.field("maxRetries"), h.GetMaxRetries())
	c.notNegative(http.field("maxConcurrentStreams"), h.GetMaxConcurrentStreams())
	c.orZero(http.field("idleTimeout"), h.GetIdleTimeout())
	c.errorIf(h.GetUseClientProtocol() && h.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE,
		http.field("useClientProtocol"), keepOne, "does not go with h2UpgradePolicy UPGRADE")
	if k := h.GetHttp2KeepAlive(); k != nil {
		field := http.field("http2KeepAlive")
		c.errorIf(k.GetTimeout() == nil, field.field("timeout"), "write how long a proxy waits for an answer", isMissing)
		c.errorIf(k.GetInterval() == nil, field.field("interval"), "write how often a proxy asks", isMissing)
		c.atLeast(field.field("timeout"), k.GetTimeout(), time.Millisecond)
		c.atLeast(field.field("interval"), k.GetInterval(), time.Millisecond)
	}
}

// Linux refuses more, and then no connection is made.
const (
	maxKeepAlive = 32767 * time.Second
	maxProbes    = 127
)

func (c *checker) keepAlive(at *fieldPath, k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if n := k.GetProbes(); n > maxProbes {
		c.errorf(at.field("probes"), "use 127 or less", "%d is more than Linux takes", n)
	}
	for _, f := range []struct {
		name string
		is   *durationpb.Duration
	}{{"time", k.GetTime()}, {"interval", k.GetInterval()}} {
		c.atLeast(at.field(f.name), f.is, time.Second)
		if f.is.AsDuration() > maxKeepAlive {
			c.errorf(at.field(f.name), "use 32767s or less", "%s is more than Linux takes", f.is.AsDuration())
		}
	}
}

func (c *checker) outliers(at *fieldPath, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	c.atLeast(at.field("interval"), o.GetInterval(), time.Millisecond)
	c.atLeast(at.field("baseEjectionTime"), o.GetBaseEjectionTime(), time.Millisecond)
	c.percent(at.field("maxEjectionPercent"), float64(o.GetMaxEjectionPercent()))
	c.percent(at.field("minHealthPercent"), float64(o.GetMinHealthPercent()))
	errors := o.GetConsecutiveErrors() //nolint:staticcheck // deprecated, and still in use
	c.notNegative(at.field("consecutiveErrors"), errors)
	c.noEffect(errors != 0, at.field("consecutiveErrors"))
	c.errorIf(o.GetConsecutiveLocalOriginFailures().GetValue() > 0 && !o.GetSplitExternalLocalOriginErrors(), at.field("consecutiveLocalOriginFailures"),
		"set splitExternalLocalOriginErrors: true", "has an effect only with splitExternalLocalOriginErrors")
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		if code < 100 || code > 599 {
			c.errorf(at.field("outlierDetectionHttpErrorCodes").item(i), "use 100 to 599", "%d is not an HTTP status", code)
		}
	}
}

func (c *checker) clientTLS(at *fieldPath, t *networking.ClientTLSSettings) {
	files := t.GetClientCertificate() != "" || t.GetPrivateKey() != "" || t.GetCaCertificates() != "" || t.GetCaCrl() != ""
	named := t.GetCredentialName() != ""
	switch t.GetMode() {
	case networking.ClientTLSSettings_MUTUAL:
		if !named {
			c.file(at.field("clientCertificate"), t.GetClientCertificate())
			c.file(at.field("privateKey"), t.GetPrivateKey())
		}
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		c.errorIf(files || named, at, useMutual, meshCertificates)
	}
	c.errorIf(files && named, at.field("credentialName"), keepOne, notWithFiles)
	c.errorIf(t.GetInsecureSkipVerify().GetValue() && (t.GetCaCertificates() != "" || len(t.GetSubjectAltNames()) > 0), at.field("insecureSkipVerify"),
		"remove it, to verify the server with them", "does not go with caCertificates and subjectAltNames")
	c.errorIf(len(t.GetSni()) > math.MaxUint8, at.field("sni"), "use 255 letters at most", "is too long")
}

// file checks the path of a file.
func (c *checker) file(at *fieldPath, path string) {
	c.errorIf(path == "", at, "name the file on the proxy", isMissing)
}
