package validate

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

const (
	maxRing   = defaultMaxRing // Envoy's maximum, which is not raised
	maxMaglev = 5000011
)

func DestinationRule(m proto.Message) []problem.Problem {
	dr := m.(*networking.DestinationRule)
	c := checker{}
	if dr.GetHost() != "*" {
		c.host(root.field("host"), dr.GetHost(), true)
	}
	c.trafficPolicy(root.field("trafficPolicy"), dr.GetTrafficPolicy())
	names := map[string]bool{}
	for i, s := range dr.GetSubsets() {
		at := root.field("subsets").item(i)
		name := at.field("name")
		switch {
		case s.GetName() == "":
			c.at(name, "give the subset a name", "is missing")
		case names[s.GetName()]:
			c.at(name, "give each subset a name of its own", "%q is there twice", s.GetName())
		case !isHostLabel(s.GetName()):
			c.at(name, "use letters, digits and -", "%q is no name of a subset", s.GetName())
		}
		names[s.GetName()] = true
		c.labels(at.field("labels"), s.GetLabels())
		c.trafficPolicy(at.field("trafficPolicy"), s.GetTrafficPolicy())
	}
	c.exportTo(root.field("exportTo"), dr.GetExportTo())
	if s := dr.GetWorkloadSelector(); s != nil {
		c.labels(root.field("workloadSelector").field("matchLabels"), s.GetMatchLabels())
	}
	c.noEffect("DestinationRule", m)
	return c.result()
}

// portPolicy is what is set for a host, a subset or a port.
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
		number := field.field("port").field("number")
		c.port(number, p.GetPort().GetNumber())
		if seen[p.GetPort().GetNumber()] {
			c.at(number, "put what belongs to one port into one entry", "%d is there twice", p.GetPort().GetNumber())
		}
		seen[p.GetPort().GetNumber()] = true
		c.portPolicy(field, p)
	}
	if tunnel := t.GetTunnel(); tunnel != nil {
		field := at.field("tunnel")
		if p := tunnel.GetProtocol(); p != "" && p != "CONNECT" && p != "POST" {
			c.at(field.field("protocol"), "use CONNECT or POST", "%q is no way to tunnel", p)
		}
		if !isIP(tunnel.GetTargetHost()) {
			c.host(field.field("targetHost"), tunnel.GetTargetHost(), false)
		}
		c.port(field.field("targetPort"), tunnel.GetTargetPort())
	}
	if b := t.GetRetryBudget(); b != nil {
		c.percent(at.field("retryBudget").field("percent"), b.GetPercent().GetValue())
	}
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
		c.at(at.field("simple"), "use LEAST_REQUEST, ROUND_ROBIN, RANDOM or PASSTHROUGH", "%d is no way to balance", lb.GetSimple())
	}
	c.consistentHash(at.field("consistentHash"), lb.GetConsistentHash())
	for i, d := range lb.GetLocalityLbSetting().GetDistribute() {
		var sum uint64
		for _, w := range d.GetTo() {
			sum += uint64(w)
		}
		if sum != 100 {
			c.at(at.field("localityLbSetting").field("distribute").item(i).field("to"), "give weights whose sum is 100", "the weights add up to %d", sum)
		}
	}
	c.warmup(at, lb)
}

func (c *checker) warmup(at *fieldPath, lb *networking.LoadBalancerSettings) {
	c.atLeast(at.field("warmupDurationSecs"), lb.GetWarmupDurationSecs(), time.Millisecond)
	w := lb.GetWarmup()
	if w == nil {
		return
	}
	field := at.field("warmup")
	if w.GetDuration() == nil {
		c.at(field.field("duration"), "say how long endpoints warm up", "is missing")
	}
	c.atLeast(field.field("duration"), w.GetDuration(), time.Millisecond)
	c.percent(field.field("minimumPercent"), w.GetMinimumPercent().GetValue())
	if a := w.GetAggression(); a != nil && !(a.GetValue() >= 1) {
		c.at(field.field("aggression"), "use 1.0 or more", "%v is too little", a.GetValue())
	}
	if s := lb.GetSimple(); lb.GetConsistentHash() != nil || s == networking.LoadBalancerSettings_RANDOM || s == networking.LoadBalancerSettings_PASSTHROUGH {
		c.warn(field, "use LEAST_REQUEST or ROUND_ROBIN with it, or remove it", "has no effect with this load balancer")
	}
}

func (c *checker) consistentHash(at *fieldPath, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	const advice = "write one of httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName"
	switch key := h.GetHashKey().(type) {
	case nil:
		c.at(at, advice, "does not say by what")
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !key.UseSourceIp {
			c.at(at.field("useSourceIp"), advice, "is false: it does not say by what")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		if !headerName.MatchString(key.HttpHeaderName) {
			c.at(at.field("httpHeaderName"), "use letters, digits and -", "%q is no name of a header", key.HttpHeaderName)
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		if key.HttpQueryParameterName == "" {
			c.at(at.field("httpQueryParameterName"), "name the parameter", "is empty")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		if key.HttpCookie.GetName() == "" {
			c.at(at.field("httpCookie").field("name"), "name the cookie", "is missing")
		}
		c.orZero(at.field("httpCookie").field("ttl"), key.HttpCookie.GetTtl())
	}
	for _, ring := range []struct {
		field *fieldPath
		size  uint64
	}{
		{at.field("ringHash").field("minimumRingSize"), h.GetRingHash().GetMinimumRingSize()},
		{at.field("minimumRingSize"), h.GetMinimumRingSize()}, //nolint:staticcheck // deprecated, and still in use
	} {
		if ring.size > maxRing {
			c.at(ring.field, "use 8388608 or less", "%d is more than Envoy takes", ring.size)
		}
	}
	if n := h.GetMaglev().GetTableSize(); n > maxMaglev {
		c.at(at.field("maglev").field("tableSize"), "use a prime up to 5000011", "%d is more than Envoy takes", n)
	} else if n != 0 && !isPrime(n) {
		c.at(at.field("maglev").field("tableSize"), "use a prime such as 65537", "%d is no prime number", n)
	}
}

func (c *checker) connectionPool(at *fieldPath, p *networking.ConnectionPoolSettings) {
	tcp, t := at.field("tcp"), p.GetTcp()
	c.notNegative(tcp.field("maxConnections"), t.GetMaxConnections())
	c.atLeast(tcp.field("connectTimeout"), t.GetConnectTimeout(), time.Millisecond)
	c.atLeast(tcp.field("maxConnectionDuration"), t.GetMaxConnectionDuration(), time.Millisecond)
	c.orZero(tcp.field("idleTimeout"), t.GetIdleTimeout())
	c.atLeast(tcp.field("tcpKeepalive").field("time"), t.GetTcpKeepalive().GetTime(), time.Second)
	c.atLeast(tcp.field("tcpKeepalive").field("interval"), t.GetTcpKeepalive().GetInterval(), time.Second)

	http, h := at.field("http"), p.GetHttp()
	c.notNegative(http.field("http1MaxPendingRequests"), h.GetHttp1MaxPendingRequests())
	c.notNegative(http.field("http2MaxRequests"), h.GetHttp2MaxRequests())
	c.notNegative(http.field("maxRequestsPerConnection"), h.GetMaxRequestsPerConnection())
	c.notNegative(http.field("maxRetries"), h.GetMaxRetries())
	c.notNegative(http.field("maxConcurrentStreams"), h.GetMaxConcurrentStreams())
	c.orZero(http.field("idleTimeout"), h.GetIdleTimeout())
	if h.GetUseClientProtocol() && h.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
		c.at(http.field("useClientProtocol"), "keep one of them", "does not go with h2UpgradePolicy UPGRADE")
	}
	if k := h.GetHttp2KeepAlive(); k != nil {
		field := http.field("http2KeepAlive")
		if k.GetTimeout() == nil {
			c.at(field.field("timeout"), "say how long an answer is waited for", "is missing")
		}
		c.atLeast(field.field("timeout"), k.GetTimeout(), time.Millisecond)
		c.atLeast(field.field("interval"), k.GetInterval(), time.Millisecond)
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
	c.notNegative(at.field("consecutiveErrors"), o.GetConsecutiveErrors()) //nolint:staticcheck // deprecated, and still in use
	if o.GetConsecutiveLocalOriginFailures().GetValue() > 0 && !o.GetSplitExternalLocalOriginErrors() {
		c.at(at.field("consecutiveLocalOriginFailures"), "set splitExternalLocalOriginErrors: true", "counts only where local errors are told from others")
	}
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		if code < 100 || code > 599 {
			c.at(at.field("outlierDetectionHttpErrorCodes").item(i), "use 100 to 599", "%d is no status of HTTP", code)
		}
	}
}

func (c *checker) clientTLS(at *fieldPath, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	files := t.GetClientCertificate() != "" || t.GetPrivateKey() != "" || t.GetCaCertificates() != "" || t.GetCaCrl() != ""
	switch t.GetMode() {
	case networking.ClientTLSSettings_MUTUAL:
		if t.GetCredentialName() == "" {
			c.required(at.field("clientCertificate"), t.GetClientCertificate())
			c.required(at.field("privateKey"), t.GetPrivateKey())
		}
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if files || t.GetCredentialName() != "" {
			c.at(at, "remove the certificates, or use mode MUTUAL", "mode ISTIO_MUTUAL takes the certificates of the mesh")
		}
	}
	if files && t.GetCredentialName() != "" {
		c.at(at.field("credentialName"), "keep one of them", "does not go with certificates in files")
	}
	if t.GetInsecureSkipVerify().GetValue() && (t.GetCaCertificates() != "" || len(t.GetSubjectAltNames()) > 0) {
		c.at(at.field("insecureSkipVerify"), "remove it, for what is given to be verified", "does not go with caCertificates and subjectAltNames")
	}
	if len(t.GetSni()) > math.MaxUint8 {
		c.at(at.field("sni"), "use 255 letters at most", "is too long")
	}
}

// required checks the path of a file.
func (c *checker) required(at *fieldPath, s string) {
	if s == "" {
		c.at(at, "name the file on the proxy", "is missing")
	}
}
