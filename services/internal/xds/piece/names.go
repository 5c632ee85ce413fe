package piece

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Clusters that are no service's.
const (
	// PassthroughCluster connects to where the caller wanted to.
	PassthroughCluster = "PassthroughCluster"
	// BlackHoleCluster has no endpoints.
	BlackHoleCluster = "BlackHoleCluster"
)

// ClusterName is the cluster of a service's port, or of a subset of it.
func ClusterName(host, subset string, port uint32) string {
	return "outbound|" + strconv.FormatUint(uint64(port), 10) + "|" + subset + "|" + host
}

// Any is m packed; equal messages have equal bytes.
func Any(m proto.Message) *anypb.Any {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("pack %T: %v", m, err)) // texts of the world are UTF-8
	}
	return a
}
