package piece

import (
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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
)

// ClusterName returns the name of the cluster of a service's port, or of a
// subset of it.
func ClusterName(host, subset string, port uint32) string {
	return "outbound|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

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

// FromADS tells clients to get the resources that a resource names from the
// same stream.
func FromADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}
