//go:build faults

package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/e2e/rig"
)

// Clients that attack the xDS port (XDS-1 to XDS-4). TestBadClients has them.

// millions are names for a request of 12 MiB, made once: the clients share the
// processors with what they attack.
var millions = sync.OnceValue(func() []string {
	all := make([]string, 1_800_000)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i%100_000)
	}
	return all
})

// namesMillions names 1.8 million clusters in one request.
func namesMillions(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: rig.ClusterLoadAssignment, ResourceNames: millions()}); err != nil {
		return err
	}
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}

// sendsLarge sends a request of 60 MiB, whose type is not served, as fast as it is
// taken.
func sendsLarge(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: strings.Repeat("x", 60<<20)}); err != nil {
		return err
	}
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}

// isSilent sends nothing.
func isSilent(_ context.Context, s stream, _ *corev3.Node, received *atomic.Int64) error {
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}

// claimsToResume names a version that never was, and leaves after the answer.
func claimsToResume(_ context.Context, s stream, node *corev3.Node, _ *atomic.Int64) error {
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: rig.Cluster, VersionInfo: "invented"}); err != nil {
		return err
	}
	_, err := s.Recv()
	return err
}

// inventsNetworks asks for views that only it has.
func inventsNetworks(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	view, err := structpb.NewStruct(map[string]any{"REQUESTED_NETWORK_VIEW": "of-" + node.GetId()})
	if err != nil {
		return err
	}
	n := &corev3.Node{Id: node.GetId(), Cluster: node.GetCluster(), Metadata: view}
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: rig.Cluster}); err != nil {
		return err
	}
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}

// rejectsAtLength has a user agent of 2 MiB and rejects everything with a message of
// 2 MiB.
func rejectsAtLength(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	long := strings.Repeat("long ", 400_000)
	n := &corev3.Node{Id: node.GetId(), Cluster: node.GetCluster(), UserAgentName: long}
	for _, url := range []string{rig.Cluster, rig.Listener} {
		if err := s.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: url}); err != nil {
			return err
		}
	}
	return reads(s, received, func(r *discoveryv3.DiscoveryResponse) {
		_ = s.Send(&discoveryv3.DiscoveryRequest{ // if the stream has ended, receiving returns the error
			TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &statusv3.Status{Code: 13, Message: long},
		})
	})
}
