package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// streamID is the prefix of the streams' node ids.
const streamID = "stream-"

// streams are xDS clients that reconnect whenever their stream has ended, as
// Envoys do. They keep their connection for as long as it accepts new streams.
type streams struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	ended   int        // streams that ended as expected
	longest time.Duration
	bad     []string // how other streams ended
}

// startStreams connects n clients to target until stop.
func startStreams(ctx context.Context, target string, n int) (*streams, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &streams{cancel: cancel}
	for i := range n {
		conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			cancel()
			return nil, err
		}
		s.wg.Go(func() {
			defer conn.Close()
			s.run(ctx, conn, &corev3.Node{Id: fmt.Sprint(streamID, i), UserAgentName: "envoy"})
		})
	}
	return s, nil
}

func (s *streams) stop() {
	s.cancel()
	s.wg.Wait()
}

// tally returns how many streams have ended as expected since the last tally, and
// the longest time that a client was without one. It is an error if a stream
// ended in another way.
func (s *streams) tally() (ended int, longest time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bad) > 0 {
		err = fmt.Errorf("%d streams ended badly: %s", len(s.bad), strings.Join(s.bad[:min(3, len(s.bad))], "; "))
	}
	ended, longest = s.ended, s.longest
	s.ended, s.longest, s.bad = 0, 0, nil
	return ended, longest, err
}

// pause is the wait before a new stream if the last one got no answer.
const pause = 200 * time.Millisecond

// run opens one stream after the other.
func (s *streams) run(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) {
	gone := time.Now()
	for ctx.Err() == nil {
		answered := time.Time{}
		err := converse(ctx, conn, node, func() { answered = time.Now() })
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.Unavailable:
			s.ended++
		default:
			s.bad = append(s.bad, err.Error())
		}
		if !answered.IsZero() {
			s.longest = max(s.longest, answered.Sub(gone))
		}
		s.mu.Unlock()
		if !answered.IsZero() {
			gone = time.Now()
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// converse asks for all clusters and acknowledges them until the stream ends. It
// calls answered at the first response.
func converse(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node, answered func()) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	request := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
	for first := true; ; first = false {
		// After EOF, Recv returns the error.
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if first {
			answered()
		}
		request = &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	}
}
