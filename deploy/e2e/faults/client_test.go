//go:build faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/e2e/rig"
)

// The most that misbehaving clients may cost: memory of each frontend, and
// responses a second for a client that rejects all of them; and how many times as long
// a change may take.
const (
	latencyOfBad   = 3
	memoryOfBad    = 96 << 20
	responsesOfBad = 200
)

// many is how many useless names a client asks for.
const many = 10_000

// stream is the stream that a misbehaving client opens.
type stream = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

// bad is a client that misbehaves.
type bad struct {
	what string
	// does misbehaves until ctx or the stream ends.
	does func(ctx context.Context, s stream, node *corev3.Node, received *atomic.Int64) error
	// the server is expected to end such a stream
	ends  bool
	alone bool // one at each frontend is enough
	many  int  // clients at each frontend; 0: 3
}

var badClients = []bad{
	{what: "stale nonces", does: staleNonces},
	{what: "rejects everything", does: rejectsAll},
	{what: "10,000 subscriptions", does: subscribesToMany(false)},
	{what: "10,000 subscriptions, others every second", does: subscribesToMany(true), alone: true},
	{what: "never reads", does: neverReads, ends: true},
	{what: "reads slowly", does: readsSlowly},
	{what: "4 MiB node", does: bigNode, ends: true},
	{what: "1.8 million names", does: namesMillions, ends: true, alone: true},
	{what: "60 MiB requests", does: sendsLarge, alone: true},
	{what: "streams without a request", does: isSilent, ends: true, many: 200},
	{what: "claims to resume, again and again", does: claimsToResume, ends: true, many: 20},
	{what: "views of networks that do not exist", does: inventsNetworks, many: 100},
	{what: "messages and user agents that are long", does: rejectsAtLength},
	{what: "70 MiB request", does: hugeRequest, ends: true},
	{what: "a client sends neither a node nor a type", does: saysNothing, ends: true},
}

// Clients misbehave on every frontend: other clients are not disturbed, and the
// cost is bounded.
func TestBadClients(t *testing.T) {
	m := start(t, onOne("", 1, 0))
	for _, b := range badClients {
		m.fault(t, b.what, func(t *testing.T) { m.misbehave(t, b) })
	}
}

// misbehave runs misbehaving clients while other clients are served. How long a change
// takes is compared with how long it takes right before and right after, so that
// other work on the machine counts on both sides.
func (m *mesh) misbehave(t *testing.T, b bad) {
	t.Helper()
	quiet := m.latency(t, 20)
	before := m.memory(t)
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	var received atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	each := 3 // clients at each frontend
	if b.alone {
		each = 1
	}
	if b.many > 0 {
		each = b.many
	}
	for _, s := range m.Frontends {
		for i := range each {
			node := &corev3.Node{Id: fmt.Sprintf("bad-%s-%d", s.Name, i), Cluster: "bad"}
			clients.Go(func() {
				for ctx.Err() == nil {
					err := converse(ctx, s.XDS, func(ctx context.Context, stream stream) error {
						return b.does(ctx, stream, node, &received)
					})
					if ctx.Err() == nil && !b.ends {
						t.Errorf("%s: the stream ended: %v", node.Id, err)
						return
					}
					again(ctx)
				}
			})
		}
	}
	busy := m.latency(t, 40)
	after := m.memory(t)
	cancel()
	clients.Wait()
	perSecond := float64(received.Load()) / time.Since(began).Seconds() / float64(each*len(m.Frontends))
	quiet = max(quiet, m.latency(t, 20))
	t.Logf("save to request: %.0f ms, without them %.0f ms; memory of the frontends: %d MiB, %d MiB before; %.0f responses a second to each",
		ms(busy), ms(quiet), after>>20, before>>20, perSecond)
	if busy > latencyOfBad*quiet {
		t.Errorf("a change takes %s, without them %s", busy, quiet)
	}
	if after > before+memoryOfBad*int64(len(m.Frontends)) {
		t.Errorf("the frontends hold %d MiB, %d MiB before", after>>20, before>>20)
	}
	if perSecond > responsesOfBad {
		t.Errorf("each client was sent %.0f responses a second", perSecond)
	}
}

// again is the pause before a client opens a new stream after its stream ended.
func again(ctx context.Context) {
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// memory returns the resident memory of all frontends.
func (m *mesh) memory(t *testing.T) (bytes int64) {
	t.Helper()
	for _, s := range m.Frontends {
		n, err := s.RSS()
		must(t, err)
		bytes += n
	}
	return bytes
}

// latency returns how long it takes from a save until both Envoys route by it:
// the median of n.
func (m *mesh) latency(t *testing.T, n int) time.Duration {
	t.Helper()
	m.writer.mu.Lock()
	defer m.writer.mu.Unlock()
	m.settled(t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var took []time.Duration
	for range n {
		m.writer.save(routesFile)
		start, want := time.Now(), m.writer.last[routesFile]
		for slices.ContainsFunc(m.envoys, func(e *proxy) bool { return e.routes.Revision() < want }) {
			select {
			case <-tick.C:
			case <-m.ctx.Done():
				t.Fatalf("revision %d is not served: %v", want, m.ctx.Err())
			}
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[n/2]
}

// converse opens a stream to a frontend.
func converse(ctx context.Context, port int, does func(context.Context, stream) error) error {
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	return does(ctx, s)
}

// reads receives until the stream ends, and counts.
func reads(s stream, received *atomic.Int64, each func(*discoveryv3.DiscoveryResponse)) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		received.Add(1)
		each(r)
	}
}

// every sends a request every d; no other goroutine sends on the stream.
func every(ctx context.Context, d time.Duration, send func(i int) error) error {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := send(i); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// both reads, and sends a request every d.
func both(ctx context.Context, s stream, received *atomic.Int64, d time.Duration, send func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reader sync.WaitGroup
	reader.Go(func() { cancel(reads(s, received, func(*discoveryv3.DiscoveryResponse) {})) })
	err := every(ctx, d, send)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err // the reader ends with the stream
}

func staleNonces(ctx context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	return both(ctx, s, received, 2*time.Millisecond, func(i int) error {
		r := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: rig.Cluster}
		if i > 0 {
			r.ResponseNonce, r.VersionInfo = fmt.Sprint("stale-", i), fmt.Sprint("v", i)
		}
		return s.Send(r)
	})
}

func rejectsAll(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	for _, url := range []string{rig.Cluster, rig.Listener} {
		if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: url}); err != nil {
			return err
		}
	}
	return reads(s, received, func(r *discoveryv3.DiscoveryResponse) {
		_ = s.Send(&discoveryv3.DiscoveryRequest{ // if the stream has ended, receiving returns the error
			TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(),
			ErrorDetail: &statusv3.Status{Code: 13, Message: "rejected by the test"},
		})
	})
}

func subscribesToMany(others bool) func(context.Context, stream, *corev3.Node, *atomic.Int64) error {
	return func(ctx context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
		return both(ctx, s, received, time.Second, func(i int) error {
			if !others && i > 0 {
				return nil
			}
			for _, url := range []string{rig.ClusterLoadAssignment, rig.RouteConfiguration} {
				if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: url, ResourceNames: names(i)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// names returns many names that do not exist, and different ones for each i.
func names(i int) []string {
	all := make([]string, many)
	for n := range all {
		all[n] = fmt.Sprintf("outbound|80||absent-%d-%d.internal", i, n)
	}
	return all
}

func neverReads(ctx context.Context, s stream, node *corev3.Node, _ *atomic.Int64) error {
	for _, url := range []string{rig.Cluster, rig.ClusterLoadAssignment, rig.RouteConfiguration} {
		r := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: url}
		if url != rig.Cluster {
			r.ResourceNames = names(0)
		}
		if err := s.Send(r); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return ctx.Err()
}

func readsSlowly(ctx context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: rig.Cluster}); err != nil {
		return err
	}
	return every(ctx, time.Second, func(int) error {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		received.Add(1)
		return s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()})
	})
}

func bigNode(ctx context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	big, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": "bad"}, "NOISE": strings.Repeat("x", 4<<20)})
	if err != nil {
		return err
	}
	return both(ctx, s, received, time.Second, func(int) error {
		return s.Send(&discoveryv3.DiscoveryRequest{
			Node: &corev3.Node{Id: node.GetId(), Cluster: node.GetCluster(), Metadata: big}, TypeUrl: rig.Cluster,
		})
	})
}

func hugeRequest(_ context.Context, s stream, node *corev3.Node, received *atomic.Int64) error {
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: strings.Repeat("x", 70<<20)}); err != nil {
		return err
	}
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}

func saysNothing(_ context.Context, s stream, _ *corev3.Node, received *atomic.Int64) error {
	if err := errors.Join(s.Send(&discoveryv3.DiscoveryRequest{}), s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "x"})); err != nil {
		return err
	}
	return reads(s, received, func(*discoveryv3.DiscoveryResponse) {})
}
