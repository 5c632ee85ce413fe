package validate

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/problem"
)

// NoEffect is a field that is accepted and changes nothing in this build.
type NoEffect struct {
	Kind string
	// Field is the path below spec, without indices and keys, as in protobuf's
	// JSON. "field=VALUE" is one value of an enumeration or a text.
	Field string
	// As is the path that documents use, if it is not Field.
	As string
	// Instead is what happens.
	Instead string
}

// NoEffects returns the one table of what is accepted and has no effect yet,
// grouped by kind.
func NoEffects() []NoEffect { return slices.Clone(noEffects) }

// position matches the indices and keys in a path.
var position = regexp.MustCompile(`\[(\d+|"([^"\\]|\\.)*")\]`)

// noEffect warns of a field that is set and has no effect. NoEffects has a row
// for the field, or for the value.
func (c *checker) noEffect(set bool, at *fieldPath, value ...string) {
	if !set {
		return
	}
	path, reason := strings.TrimPrefix(position.ReplaceAllString(at.String(), ""), "spec."), "has no effect yet: "
	for _, v := range value {
		path, reason = path+"="+v, v+" "+reason
	}
	i := slices.IndexFunc(noEffects, func(row NoEffect) bool { return row.Kind == c.kind && cmp.Or(row.As, row.Field) == path })
	if i < 0 { // a mistake that TestNoEffectRows finds; a user's object must not end the process for it
		c.without(at, reason+withoutRow)
		return
	}
	c.without(at, reason+noEffects[i].Instead)
}

func (c *checker) without(at *fieldPath, reason string) {
	c.add(problem.Warning, "no-effect", at, "do not rely on it", reason)
}

// meshConfigFields warns of the fields of a MeshConfig, most of which have no
// effect.
func (c *checker) meshConfigFields(m *meshconfig.MeshConfig) {
	warn := func(at *fieldPath, m protoreflect.Message, effective map[string]bool) {
		m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			c.noEffect(!effective[fd.JSONName()], at.field(fd.JSONName()))
			return true
		})
	}
	warn(root, m.ProtoReflect(), meshConfigEffects)
	warn(root.field("defaultConfig"), m.GetDefaultConfig().ProtoReflect(), proxyConfigEffects)
	warn(root.field("defaultProviders"), m.GetDefaultProviders().ProtoReflect(), defaultsEffects)
	for i, p := range m.GetExtensionProviders() {
		warn(root.field("extensionProviders").item(i), p.ProtoReflect(), providerEffects)
	}
	for i, ca := range m.GetCaCertificates() {
		warn(root.field("caCertificates").item(i), ca.ProtoReflect(), authorityEffects)
	}
}

const withoutRow = "it is ignored"

const (
	refused = "connections to the host are refused"
	alike   = "endpoints of all localities are used alike"

	otherErrors = "write consecutive5xxErrors or consecutiveGatewayErrors"
)

var noEffects = append([]NoEffect{
	{Kind: "ServiceEntry", Field: "resolution=DYNAMIC_DNS", Instead: "requests to the hosts get 503; name them one by one with resolution DNS"},
	{Kind: "ServiceEntry", Field: "ports.protocol=UDP", Instead: "proxies leave UDP alone"},
	{Kind: "VirtualService", Field: "http.fault.delay.exponentialDelay", Instead: "requests are not delayed"},
	{Kind: "VirtualService", Field: "http.fault.abort.http2Error", Instead: "requests are not aborted"},
	{Kind: "VirtualService", Field: "tls", Instead: "connections of sidecars go where they would without the route"},
	{Kind: "VirtualService", Field: "tcp.match.sourceSubnet", Instead: "sidecars send connections of every source where the route says; routers look at the source"},
	{Kind: "Gateway", Field: "servers.tls.insecureSkipVerify", Instead: "a client whose certificate cannot be verified is refused"},
	{Kind: "Gateway", Field: "servers.port.targetPort", Instead: "the server listens on the port's number"},
	{Kind: "Gateway", Field: "servers.defaultEndpoint", Instead: "requests go where VirtualServices say"},
	{Kind: "RequestAuthentication", Field: "jwtRules.timeout", Instead: "keys come from the log, and their watcher has a timeout of its own; with the annotation meshlog.dev/jwks it counts"},
	{Kind: "Telemetry", Field: "tracing", Instead: "proxies report no traces"},
	{Kind: "Telemetry", Field: "metrics", Instead: "proxies have the statistics of a stock Envoy, which has no istio_requests_total"},
	{Kind: "Telemetry", Field: "accessLogging.filter", Instead: "all requests and connections are logged"},
	{Kind: "Telemetry", Field: "targetRefs.kind=GatewayClass", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "Telemetry", Field: "targetRefs.kind=Service", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "Telemetry", Field: "targetRefs.kind=ServiceEntry", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "Telemetry", Field: "targetRef.kind=GatewayClass", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "Telemetry", Field: "targetRef.kind=Service", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "Telemetry", Field: "targetRef.kind=ServiceEntry", Instead: "only a target of kind Gateway selects proxies"},
	{Kind: "MeshNetworks", Field: "networks.gateways.locality", Instead: "a gateway has the locality of the endpoints behind it"},
	{Kind: "MeshConfig", Field: "defaultTrafficPolicy.outlierDetection.consecutiveErrors", Instead: otherErrors},
	{Kind: "MeshConfig", Field: "outboundTrafficPolicy.mode=ALLOW_ANY_DYNAMIC_DNS", Instead: "requests to unknown hosts go to the address that the caller chose, as with ALLOW_ANY"},
}, append(trafficPolicyNoEffects("trafficPolicy", "subsets.trafficPolicy"), meshConfigNoEffects()...)...)

// trafficPolicyNoEffects returns the rows of a traffic policy at each place.
func trafficPolicyNoEffects(places ...string) []NoEffect {
	var rows []NoEffect
	for _, place := range places {
		rows = append(rows, NoEffect{Kind: "DestinationRule", Field: place + ".tunnel", Instead: "connections go straight to the destination"})
		for _, at := range []string{place, place + ".portLevelSettings"} {
			rows = append(rows,
				NoEffect{Kind: "DestinationRule", Field: at + ".loadBalancer.zoneAwareLbSetting", Instead: alike},
				NoEffect{Kind: "DestinationRule", Field: at + ".outlierDetection.consecutiveErrors", Instead: otherErrors},
			)
		}
	}
	return rows
}

// meshConfigEffects are the fields of MeshConfig that have an effect: most of
// them have none yet. defaultConfig and extensionProviders have rows of their own.
var meshConfigEffects = map[string]bool{
	"connectTimeout": true, "defaultDestinationRuleExportTo": true, "defaultHttpRetryPolicy": true, "defaultServiceExportTo": true,
	"defaultTrafficPolicy": true, "defaultVirtualServiceExportTo": true, "dnsRefreshRate": true, "h2UpgradePolicy": true,
	"accessLogFile": true, "accessLogFormat": true, "accessLogEncoding": true, "disableEnvoyListenerLog": true, "defaultProviders": true,
	"enableAutoMtls": true, "inboundTrafficPolicy": true, "meshMTLS": true, "outboundTrafficPolicy": true, "pathNormalization": true, "protocolDetectionTimeout": true, "proxyHttpPort": true,
	"localityLbSetting": true, "proxyListenPort": true, "rootNamespace": true, "serviceSettings": true, "tcpKeepalive": true, "tlsDefaults": true,
	"defaultConfig": true, "extensionProviders": true, "trustDomain": true, "trustDomainAliases": true, "caCertificates": true,
}

var (
	proxyConfigEffects = map[string]bool{"gatewayTopology": true}
	authorityEffects   = map[string]bool{"pem": true, "trustDomains": true}
	providerEffects    = map[string]bool{"name": true, "envoyExtAuthzHttp": true, "envoyExtAuthzGrpc": true, "envoyFileAccessLog": true}
	defaultsEffects    = map[string]bool{"accessLogging": true}
)

func meshConfigNoEffects() []NoEffect {
	var rows []NoEffect
	add := func(m proto.Message, effective map[string]bool, prefix, instead string) {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			switch name := fields.Get(i).JSONName(); {
			case name == "configSources":
				rows = append(rows, NoEffect{Kind: "MeshConfig", Field: name, Instead: "only those in the file of --mesh-config are watched"})
			case !effective[name]:
				rows = append(rows, NoEffect{Kind: "MeshConfig", Field: prefix + name, Instead: instead})
			}
		}
	}
	add(&meshconfig.MeshConfig{}, meshConfigEffects, "", "Istio's default holds, if it has one")
	add(&meshconfig.ProxyConfig{}, proxyConfigEffects, "defaultConfig.", "proxies keep what they were started with")
	add(&meshconfig.MeshConfig_DefaultProviders{}, defaultsEffects, "defaultProviders.", "no proxy uses the provider by default")
	add(&meshconfig.MeshConfig_CertificateData{}, authorityEffects, "caCertificates.", "no proxy trusts a root by the entry")
	add(&meshconfig.MeshConfig_ExtensionProvider{}, providerEffects, "extensionProviders.", "no proxy uses the provider")
	return rows
}
