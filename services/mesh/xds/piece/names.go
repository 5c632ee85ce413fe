package piece

import (
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/index"
)

// Clusters that belong to no service.
const (
	// PassthroughCluster connects to the address that the caller chose.
	PassthroughCluster = "PassthroughCluster"
	// BlackHoleCluster has no endpoints.
	BlackHoleCluster = "BlackHoleCluster"
	// DynamicDNSCluster resolves the host of each request to an unknown host (MC-3).
	DynamicDNSCluster = "AllowAnyDynamicDNSCluster"
)

// GatewayPorts is the key in the metadata of a router's Listener under which the ports of
// Gateways are, if a Service in front of the router sends them to another one.
const GatewayPorts = "meshlog.dev/gateway"

// InboundPassthroughCluster connects to the address that the caller of a sidecar's own
// workload chose.
const InboundPassthroughCluster = "InboundPassthroughCluster"

// InboundCluster returns the name of the cluster of a port of a sidecar's own workload.
func InboundCluster(port uint32) string {
	return "inbound|" + strconv.FormatUint(uint64(port), 10) + "||"
}

// ClusterName returns the name of the cluster of a service's port, or of a
// subset of it.
func ClusterName(host, subset string, port uint32) string {
	return "outbound|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// ServerName returns the name that clients ask for in mutual TLS of the mesh when they call
// a service's port, or a subset of it (MTLS-8). It is also the name of the cluster to which
// a gateway between networks passes the connection on (GW-11).
func ServerName(host, subset string, port uint32) string {
	return "outbound_." + strconv.FormatUint(uint64(port), 10) + "_." + subset + "_." + host
}

// ALPNMetadata and ALPNKey are where the metadata of a cluster has what HTTP requests offer
// by ALPN in place of what its transport socket offers (MTLS-7).
const (
	ALPNMetadata = "meshlog"
	ALPNKey      = "alpn"
)

// TakesRequests reports whether a port with this protocol may receive HTTP
// requests, gRPC included.
func TakesRequests(p index.Protocol) bool { return p.IsHTTP() || p == index.Sniffed }

// Any packs m; equal messages have equal bytes.
func Any(m proto.Message) *anypb.Any {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("pack %T: %v", m, err)) // texts of the world are UTF-8
	}
	return a
}

// DenyAll returns a filter that refuses every request, and names policy in the details of
// the response.
func DenyAll(policy string) *httpv3.RBAC {
	return &httpv3.RBAC{Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{policy: {
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
		Principals:  []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}},
	}}}}
}

// FromADS tells clients to get the resources that a resource names from the
// same stream.
func FromADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}
