package validate

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
)

var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	sources   = []string{"kubernetes", "file", "api", "mcpxds", "consul", "nacos"}
)

// MeshConfig checks a MeshConfig.
func MeshConfig(m proto.Message) []problem.Diagnostic {
	mc := m.(*meshconfig.MeshConfig)
	c := checker{kind: "MeshConfig"}
	for _, p := range []struct {
		name   string
		number int32
	}{
		{"proxyListenPort", mc.GetProxyListenPort()}, {"proxyInboundListenPort", mc.GetProxyInboundListenPort()}, {"proxyHttpPort", mc.GetProxyHttpPort()},
	} {
		if p.number < 0 || p.number > math.MaxUint16 { // 0 is the default
			c.errorf(root.field(p.name), usePort, isNoPort, p.number)
		}
	}
	c.atLeast(root.field("connectTimeout"), mc.GetConnectTimeout(), time.Millisecond)
	c.atLeast(root.field("dnsRefreshRate"), mc.GetDnsRefreshRate(), 2*time.Millisecond) // Envoy wants more than 1ms
	c.orZero(root.field("protocolDetectionTimeout"), mc.GetProtocolDetectionTimeout())
	c.keepAlive(root.field("tcpKeepalive"), mc.GetTcpKeepalive())
	c.eachOf(root.field("tlsDefaults.cipherSuites"), mc.GetTlsDefaults().GetCipherSuites(), CipherSuites)
	c.eachOf(root.field("tlsDefaults.ecdhCurves"), mc.GetTlsDefaults().GetEcdhCurves(), Curves)
	c.eachOf(root.field("meshMTLS.cipherSuites"), mc.GetMeshMTLS().GetCipherSuites(), CipherSuites)
	c.eachOf(root.field("meshMTLS.ecdhCurves"), mc.GetMeshMTLS().GetEcdhCurves(), Curves)
	c.retries(root.field("defaultHttpRetryPolicy"), mc.GetDefaultHttpRetryPolicy())
	c.message(root, m.ProtoReflect(), 0) // last, because it knows less about a field
	baseline, at := mc.GetDefaultTrafficPolicy(), root.field("defaultTrafficPolicy")
	c.connectionPool(at.field("connectionPool"), baseline.GetConnectionPool())
	c.outliers(at.field("outlierDetection"), baseline.GetOutlierDetection())
	for i, s := range mc.GetServiceSettings() {
		for j, h := range s.GetHosts() {
			c.host(root.field("serviceSettings").item(i).field("hosts").item(j), h, true)
		}
	}
	c.unknownHosts(root.field("outboundTrafficPolicy"), mc.GetOutboundTrafficPolicy())
	c.authorities(mc)
	c.extensionProviders(mc.GetExtensionProviders())
	c.localities(root.field("localityLbSetting"), mc.GetLocalityLbSetting())
	c.meshLogs(mc)
	c.meshTracing(mc)
	c.meshConfigFields(mc)
	return c.result()
}

// unknownHosts checks how sidecars call unknown hosts (MC-3).
func (c *checker) unknownHosts(at *fieldPath, p *meshconfig.MeshConfig_OutboundTrafficPolicy) {
	tls := p.GetTls()
	if tls == nil {
		return
	}
	if p.GetMode() != meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS {
		c.without(at.field("tls"), "has an effect with mode ALLOW_ANY_DYNAMIC_DNS only")
	}
	c.clientTLS(at.field("tls"), tls)
	c.errorIf(tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL, at.field("tls.mode"), "use DISABLE, SIMPLE or MUTUAL", "unknown hosts are no part of the mesh")
	c.errorIf(tls.GetCredentialName() != "", at.field("tls.credentialName"), "name files on the proxies", "a MeshConfig cannot name a secret")
}

// sourceRule checks a rule about what a source may publish (ACL-1).
func (c *checker) sourceRule(at *fieldPath, r *configv1.SourceRule) {
	source := r.GetSource()
	c.errorIf(source == "", at.field("source"), "write a source such as consul, or * for all", "the source is missing")
	if known := append([]string{"up"}, sources...); source != "" && !slices.ContainsFunc(known, func(s string) bool { return permit.Match(source, s) }) {
		c.warnf(at.field("source"), "use "+strings.Join(known, ", ")+", or a glob that matches some", "meshlog has no source %q", source)
	}
	c.globs(at, []globList{{"kinds", r.GetKinds()}, {"namespaces", r.GetNamespaces()}, {"hosts", r.GetHosts()}})
	for i, h := range r.GetHosts() {
		c.errorIf(h != strings.ToLower(h), at.field("hosts").item(i), "write it in lower case", "%q has capital letters", h)
	}
	for i, k := range r.GetKinds() {
		if k == "MeshPolicy" {
			c.warnf(at.field("kinds").item(i), "remove it", "no rule decides about a MeshPolicy: only kubernetes, file, api and up may publish it")
		}
	}
}

// isSource reports whether a glob matches a source.
func isSource(glob string) bool {
	return slices.ContainsFunc(sources, func(s string) bool { return permit.Match(glob, s) })
}

// globList is a field with globs.
type globList struct {
	field string
	globs []string
}

func (c *checker) globs(at *fieldPath, lists []globList) {
	for _, list := range lists {
		seen := map[string]bool{}
		for i, glob := range list.globs {
			c.errorIf(glob == "", at.field(list.field).item(i), "remove it, or write * for all", "is empty")
			c.errorIf(!first(seen, glob), at.field(list.field).item(i), "name each once", isTwice, glob)
		}
	}
}

// SourceRuleKinds returns warnings about the kinds in the source rules of a MeshPolicy
// of which no name is known. A rule about them decides about nothing.
func SourceRuleKinds(p *configv1.MeshPolicy, known func(glob string) bool) []problem.Diagnostic {
	c := checker{}
	for i, r := range p.GetSourceRules() {
		for j, k := range r.GetKinds() {
			if k != "" && !known(k) {
				c.warnf(root.field("sourceRules").item(i).field("kinds").item(j), "write it as documents do, such as VirtualService; KubernetesGateway is the one of the Gateway API", "meshlog knows no kind %q", k)
			}
		}
	}
	return c.result()
}

// CipherSuites and Curves are those of TLS 1.2 that Envoy knows; it refuses a
// cluster that names another one.
var (
	CipherSuites = []string{
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA",
		"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA", "AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-SHA", "AES256-SHA",
	}
	Curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}
)

func (c *checker) eachOf(at *fieldPath, all, known []string) {
	for i, s := range all {
		if !slices.Contains(known, s) {
			c.errorf(at.item(i), "use "+strings.Join(known, ", "), "Envoy does not know %q", s)
		}
	}
}

// mergeHosts checks the hosts that sources share (AGG-4).
func (c *checker) mergeHosts(merges []*configv1.MergeHosts) {
	for i, m := range merges {
		at := root.field("mergeHosts").item(i)
		c.errorIf(len(m.GetHosts()) == 0, at.field("hosts"), "name the hosts, such as *.shop.example", isEmpty)
		c.errorIf(len(m.GetSources()) < 2, at.field("sources"), "name the sources that share them, such as [consul, nacos]", "needs two sources or more")
		for j, s := range m.GetSources() {
			if !slices.Contains(sources, s) {
				c.warnf(at.field("sources").item(j), "use "+strings.Join(sources, ", "), "meshlog has no source %q", s)
			}
		}
	}
}

// mcpSink checks what clients of MCP-over-xDS get (MCP-16).
func (c *checker) mcpSink(at *fieldPath, s *configv1.McpSink) {
	c.globs(at, []globList{{"sources", s.GetSources()}, {"kinds", s.GetKinds()}, {"namespaces", s.GetNamespaces()}})
	for i, source := range s.GetSources() {
		if source != "" && !isSource(source) {
			c.warnf(at.field("sources").item(i), "use "+strings.Join(sources, ", ")+", or a glob that matches some", "meshlog has no source %q", source)
		}
	}
	for i, what := range s.GetInclude() {
		c.errorIf(what != "kubernetes", at.field("include").item(i), "write kubernetes, or leave it out", "meshlog knows no %q", what)
	}
}

// operators checks who may act on the mesh.
func (c *checker) operators(all []*configv1.Operator) {
	names, keys := map[string]bool{}, map[string]bool{}
	for i, o := range all {
		at := root.field("operators").item(i)
		c.errorIf(o.GetName() == "", at.field("name"), "write the name that is shown for what the operator does", isEmpty)
		c.errorIf(!first(names, o.GetName()), at.field("name"), "name each operator once, with all keys", isTwice, o.GetName())
		c.errorIf(len(o.GetKeys()) == 0, at.field("keys"), "make a key with `meshlog bus-auth --operator`", isEmpty)
		for j, text := range o.GetKeys() {
			_, ok := permit.ParseKey(text)
			c.errorIf(!ok, at.field("keys").item(j), "copy the public key that `meshlog bus-auth --operator` prints", "%q is not the public key of an operator", text)
			c.errorIf(!first(keys, text), at.field("keys").item(j), "give each operator keys of their own", isTwice, text)
		}
	}
}

// rollout checks how changes reach the proxies.
func (c *checker) rollout(r *configv1.Rollout) {
	at := root.field("rollout")
	c.errorIf(r != nil && len(r.GetSteps()) == 0, at.field("steps"), "write steps such as {percent: 10}, or leave rollout out", isEmpty)
	percent := uint32(0)
	for i, s := range r.GetSteps() {
		at := at.field("steps").item(i)
		c.errorIf(s.GetPercent() == 0 && len(s.GetProxies()) == 0, at, "write percent, or proxies", "selects no proxies")
		c.errorIf(s.GetPercent() > 100, at.field("percent"), "use 1 to 100", "%s is more than 100 percent", fmt.Sprint(s.GetPercent()))
		c.errorIf(s.GetPercent() != 0 && s.GetPercent() <= percent, at.field("percent"), "write steps with growing shares", "%s%% reaches no more proxies than the steps before", fmt.Sprint(s.GetPercent()))
		percent = max(percent, s.GetPercent())
		c.errorIf(s.GetAckPercent() > 100, at.field("ackPercent"), "use 1 to 100; 0 means the default of 100", "%s is more than 100 percent", fmt.Sprint(s.GetAckPercent()))
		c.orZero(at.field("hold"), s.GetHold())
		for j, p := range s.GetProxies() {
			c.errorIf(p.GetId() == "" && p.GetNamespace() == "" && p.GetCluster() == "" && len(p.GetLabels()) == 0, at.field("proxies").item(j),
				"write id, namespace, cluster or labels", "selects no proxies")
			_, nameless := p.GetLabels()[""]
			c.errorIf(nameless, at.field("proxies").item(j).field("labels"), "write the name of a label", "a label has no name")
		}
	}
	c.errorIf(len(r.GetSteps()) > maxRolloutSteps, at.field("steps"), "write fewer steps", "there are more than %s", fmt.Sprint(maxRolloutSteps))
}

// maxRolloutSteps bounds the records that a rollout makes.
const maxRolloutSteps = 50

// MCPKinds returns warnings about the kinds of mcp.sinks in a MeshPolicy that no client gets.
func MCPKinds(p *configv1.MeshPolicy, known func(glob string) bool) []problem.Diagnostic {
	c := checker{}
	for i, s := range p.GetMcp().GetSinks() {
		for j, k := range s.GetKinds() {
			if k != "" && !known(k) {
				c.warnf(root.field("mcp.sinks").item(i).field("kinds").item(j), "name a kind of Istio, such as ServiceEntry, which Services are there", "MCP-over-xDS carries no kind %q", k)
			}
		}
	}
	return c.result()
}

// MeshPolicy checks a MeshPolicy.
func MeshPolicy(m proto.Message) []problem.Diagnostic {
	p := m.(*configv1.MeshPolicy)
	c := checker{}
	seen := map[string]bool{}
	for i, s := range p.GetSourcePriority() {
		at := root.field("sourcePriority").item(i)
		c.errorIf(!first(seen, s), at, "name each source once, the preferred one first", "source %q is there twice", s)
		if !slices.Contains(sources, s) {
			c.warnf(at, "use "+strings.Join(sources, ", "), "meshlog has no source %q", s)
		}
	}
	c.orZero(root.field("maxConnectionDuration"), p.GetMaxConnectionDuration())
	when := p.GetGatewayCertificates()
	c.errorIf(when != "" && when != "onDemand", root.field("gatewayCertificates"), "write onDemand, or leave it out", "meshlog knows no %q", when)
	required := map[string]bool{}
	for i, r := range p.GetRequiredSources() {
		at := root.field("requiredSources").item(i)
		shard := r.GetSource() + "/" + r.GetInstance()
		c.errorIf(r.GetSource() == "" || r.GetInstance() == "", at, "write both, like {source: file, instance: default}", "source or instance is missing")
		c.errorIf(!first(required, shard), at, "name each source instance once", isTwice, shard)
		c.errorIf(r.GetSource() == ident.API, at, "remove it", "source %s has no watcher that could list it, so nothing would be published in a new epoch", shard)
	}
	for i, r := range p.GetSourceRules() {
		c.sourceRule(root.field("sourceRules").item(i), r)
	}
	c.mergeHosts(p.GetMergeHosts())
	for i, s := range p.GetMcp().GetSinks() {
		c.mcpSink(root.field("mcp.sinks").item(i), s)
	}
	c.operators(p.GetOperators())
	c.rollout(p.GetRollout())
	if n := p.GetGuard().GetMaxLossPercent(); n > 100 {
		c.errorf(root.field("guard.maxLossPercent"), "use 1 to 100; 0 means the default of 30", "%d is more than 100 percent", n)
	}
	if ns := p.GetRootNamespace(); ns != "" {
		c.namespace(root.field("rootNamespace"), ns)
	}
	namespaces := map[string]bool{}
	for i, ns := range p.GetRawResources() {
		at := root.field("rawResources").item(i)
		c.namespace(at, ns)
		c.errorIf(!first(namespaces, ns), at, "name each namespace once", isTwice, ns)
	}
	if d := p.GetDomainSuffix(); d != "" {
		c.errorIf(!subdomain.MatchString(d), root.field("domainSuffix"), "write it like cluster.local", "%q is not a DNS domain", d)
	}
	return c.result()
}
