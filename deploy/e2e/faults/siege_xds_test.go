//go:build faults && linux

package faults

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/e2e/rig"
)

// brief is how long an attack lasts that only has to be counted.
const brief = 100 * time.Millisecond

// rawCodec sends and receives messages as bytes, so that a client may send what no
// library would.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = b
	return nil
}

// attackXDS makes one random attack at the xDS port of a random frontend. Whatever
// the frontend answers is its right.
func (m *mesh) attackXDS(ctx context.Context, a *attacker) string {
	port := m.Frontends[a.dice.IntN(len(m.Frontends))].XDS
	type attack struct {
		what string
		does func(context.Context, int)
	}
	attacks := []attack{
		{"random bytes on the connection", a.randomBytes},
		{"streams without a request", a.silentStreams},
		{"names without end", func(ctx context.Context, port int) {
			a.converse(ctx, port, a.request(nil, rig.ClusterLoadAssignment, a.hugeNames()))
		}},
		{"a large node", func(ctx context.Context, port int) {
			noise := map[string]any{"NOISE": strings.Repeat("x", 1<<uint(14+a.dice.IntN(9)))}
			a.converse(ctx, port, a.request(noise, rig.Cluster, nil))
		}},
		{"an invented network view", func(ctx context.Context, port int) {
			a.converse(ctx, port, a.request(map[string]any{"REQUESTED_NETWORK_VIEW": a.word()}, rig.Cluster, nil))
		}},
		{"a claim to resume", func(ctx context.Context, port int) {
			r := a.request(nil, rig.Cluster, nil)
			r = protowire.AppendTag(r, 1, protowire.BytesType) // version_info
			r = protowire.AppendString(r, a.word())
			a.converse(ctx, port, r)
		}},
		{"a rejection that is not UTF-8", func(ctx context.Context, port int) {
			status := protowire.AppendTag(nil, 2, protowire.BytesType) // error_detail.message
			status = protowire.AppendString(status, strings.Repeat("\xff\xfe", 1+a.dice.IntN(1<<12)))
			r := a.request(nil, rig.Cluster, nil)
			r = protowire.AppendTag(r, 6, protowire.BytesType)
			r = protowire.AppendBytes(r, status)
			r = protowire.AppendTag(r, 5, protowire.BytesType) // response_nonce
			r = protowire.AppendString(r, fmt.Sprint(a.dice.IntN(4)))
			a.converse(ctx, port, a.request(nil, rig.Cluster, nil), r)
		}},
		{"a request with flipped bytes", func(ctx context.Context, port int) {
			r := a.request(map[string]any{"LABELS": map[string]any{"app": "sotw"}}, rig.Listener, []string{"a", "", "*"})
			for range 1 + a.dice.IntN(8) {
				r[a.dice.IntN(len(r))] = byte(a.dice.Uint32())
			}
			a.converse(ctx, port, r)
		}},
		{"the id of another proxy", func(ctx context.Context, port int) {
			node := &corev3.Node{Id: "sotw", Cluster: "demo"}
			b, _ := proto.Marshal(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: rig.Cluster}) // a valid message
			a.converse(ctx, port, b)
		}},
	}
	chosen := attacks[a.dice.IntN(len(attacks))]
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+a.dice.IntN(150))*time.Millisecond)
	defer cancel()
	chosen.does(ctx, port)
	return chosen.what
}

func (a *attacker) word() string { return fmt.Sprintf("w%x", a.dice.Uint64()) }

// request returns the bytes of a DiscoveryRequest of an invented node.
func (a *attacker) request(metadata map[string]any, url string, names []string) []byte {
	b, _ := proto.Marshal(&discoveryv3.DiscoveryRequest{Node: a.node(metadata), TypeUrl: url, ResourceNames: names}) // a valid message
	return b
}

// node returns an invented node.
func (a *attacker) node(metadata map[string]any) *corev3.Node {
	node := &corev3.Node{
		Id: "attacker-" + a.word(), Cluster: "attacker", UserAgentName: "agent-" + a.word(),
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: a.word()},
	}
	if metadata != nil {
		node.Metadata, _ = structpb.NewStruct(metadata) // strings and maps of strings are valid
	}
	return node
}

// hugeNames returns up to 400,000 short names.
func (a *attacker) hugeNames() []string {
	return absent()[:1<<uint(10+a.dice.IntN(9))+a.dice.IntN(1<<17)]
}

// absent are names that do not exist, made once: the attackers share the processors
// with what they attack.
var absent = sync.OnceValue(func() []string {
	all := make([]string, 1<<18+1<<17)
	for i := range all {
		all[i] = fmt.Sprintf("%x", i)
	}
	return all
})

// The methods of ADS.
const (
	sotwADS  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// converse is exchange with requests of either protocol.
func (a *attacker) converse(ctx context.Context, port int, requests ...[]byte) {
	method := sotwADS
	if a.dice.IntN(3) == 0 {
		method = deltaADS
	}
	a.exchange(ctx, port, method, requests...)
}

// exchange sends requests on a stream and reads what comes until ctx ends.
func (a *attacker) exchange(ctx context.Context, port int, method string, requests ...[]byte) {
	conn, err := dialRaw(port)
	if err != nil {
		return
	}
	defer conn.Close()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return
	}
	for _, r := range requests {
		if s.SendMsg(&r) != nil {
			break
		}
	}
	for {
		var b []byte
		if s.RecvMsg(&b) != nil {
			return
		}
	}
}

func dialRaw(port int) (*grpc.ClientConn, error) {
	return grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
}

// silentStreams opens streams that send nothing.
func (a *attacker) silentStreams(ctx context.Context, port int) {
	conn, err := dialRaw(port)
	if err != nil {
		return
	}
	defer conn.Close()
	for range 50 {
		_, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, sotwADS)
		if err != nil {
			return
		}
	}
	<-ctx.Done()
}

// randomBytes writes bytes that are no HTTP/2, after a valid preface or none.
func (a *attacker) randomBytes(ctx context.Context, port int) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return
	}
	defer conn.Close()
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if a.dice.IntN(2) == 0 {
		b = nil
	}
	for range 1 + a.dice.IntN(4096) {
		b = append(b, byte(a.dice.Uint32()))
	}
	_, _ = conn.Write(b) // the server may have closed it
	<-ctx.Done()
}
