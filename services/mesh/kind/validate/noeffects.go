package validate

import (
	"google.golang.org/protobuf/proto"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

const (
	refused  = "connections to the host are refused"
	unopened = "the proxy does not open the server"
	alike    = "endpoints of all localities are used alike"
)

var noEffects = append([]NoEffect{
	{Kind: "ServiceEntry", Field: "resolution=DYNAMIC_DNS", Instead: "requests to the hosts get 503; name them one by one with resolution DNS"},
	{Kind: "ServiceEntry", Field: "ports.protocol=UDP", Instead: "proxies leave UDP alone"},
	{Kind: "VirtualService", Field: "http.fault.delay.exponentialDelay", Instead: "requests are not delayed"},
	{Kind: "VirtualService", Field: "http.fault.abort.http2Error", Instead: "requests are not aborted"},
	{Kind: "VirtualService", Field: "tls", Instead: "TLS connections go where they would without the route"},
	{Kind: "VirtualService", Field: "tcp.match.sourceSubnet", Instead: "connections of every source match"},
	{Kind: "DestinationRule", Field: "workloadSelector", Instead: "the whole rule is left out"},
	{Kind: "Gateway", Field: "servers.port.protocol=HTTPS", Instead: unopened},
	{Kind: "Gateway", Field: "servers.port.protocol=TLS", Instead: unopened},
	{Kind: "Gateway", Field: "servers.port.targetPort", Instead: "the server listens on the port's number"},
	{Kind: "Gateway", Field: "servers.defaultEndpoint", Instead: "requests go where VirtualServices say"},
	{Kind: "Service", Field: "internalTrafficLocal", As: "internalTrafficPolicy", Instead: "endpoints on all nodes are used"},
	{Kind: "Service", Field: "trafficDistribution", Instead: alike},
	{Kind: "MeshNetworks", Field: "networks.gateways.locality", Instead: "a gateway has the locality of the endpoints behind it"},
}, append(trafficPolicyNoEffects("trafficPolicy", "subsets.trafficPolicy"), meshConfigNoEffects()...)...)

// trafficPolicyNoEffects returns the rows of a traffic policy at each place.
func trafficPolicyNoEffects(places ...string) []NoEffect {
	var rows []NoEffect
	for _, place := range places {
		rows = append(rows, NoEffect{Kind: "DestinationRule", Field: place + ".tunnel", Instead: "connections go straight to the destination"})
		for _, at := range []string{place, place + ".portLevelSettings"} {
			rows = append(rows,
				NoEffect{Kind: "DestinationRule", Field: at + ".loadBalancer.localityLbSetting", Instead: alike},
				NoEffect{Kind: "DestinationRule", Field: at + ".loadBalancer.zoneAwareLbSetting", Instead: alike},
				NoEffect{Kind: "DestinationRule", Field: at + ".outlierDetection.consecutiveErrors", Instead: "write consecutive5xxErrors or consecutiveGatewayErrors"},
				NoEffect{Kind: "DestinationRule", Field: at + ".tls.mode=ISTIO_MUTUAL", Instead: refused},
				NoEffect{Kind: "DestinationRule", Field: at + ".tls.credentialName", Instead: refused},
			)
		}
	}
	return rows
}

// meshConfigEffects are the fields of MeshConfig that have an effect: most of
// them have none yet. defaultConfig has rows of its own.
var meshConfigEffects = map[string]bool{
	"connectTimeout": true, "defaultDestinationRuleExportTo": true, "defaultHttpRetryPolicy": true, "defaultServiceExportTo": true,
	"defaultTrafficPolicy": true, "defaultVirtualServiceExportTo": true, "dnsRefreshRate": true, "h2UpgradePolicy": true,
	"outboundTrafficPolicy": true, "pathNormalization": true, "protocolDetectionTimeout": true, "proxyHttpPort": true,
	"proxyListenPort": true, "rootNamespace": true, "serviceSettings": true, "tcpKeepalive": true, "tlsDefaults": true,
	"defaultConfig": true,
}

var proxyConfigEffects = map[string]bool{"gatewayTopology": true}

func meshConfigNoEffects() []NoEffect {
	var rows []NoEffect
	add := func(m proto.Message, effective map[string]bool, prefix, instead string) {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if name := fields.Get(i).JSONName(); !effective[name] {
				rows = append(rows, NoEffect{Kind: "MeshConfig", Field: prefix + name, Instead: instead})
			}
		}
	}
	add(&meshconfig.MeshConfig{}, meshConfigEffects, "", "Istio's default holds, if it has one")
	add(&meshconfig.ProxyConfig{}, proxyConfigEffects, "defaultConfig.", "proxies keep what they were started with")
	return rows
}
