package piece

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// DynamicDNS returns the settings of the cache of names that the clusters of a proxy for
// hosts that calls name share with the filters that resolve these (SE-8). Envoy refuses two
// caches of one name with other settings, and Clusters and Listeners never change at one
// time, so nothing may depend on the configuration.
func DynamicDNS() *commonv3.DnsCacheConfig {
	return &commonv3.DnsCacheConfig{Name: "dynamic-dns", DnsLookupFamily: clusterv3.Cluster_V4_PREFERRED}
}

// ResolvesUnknown reports whether sidecars resolve the names of unknown hosts (MC-3).
func ResolvesUnknown(mesh *meshconfig.MeshConfig) bool {
	return mesh.GetOutboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS
}
