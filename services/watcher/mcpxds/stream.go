package mcpxds

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// maxAnswer is the largest answer in bytes (MCP-11).
	maxAnswer = 512 << 20
	// pings are HTTP/2's. Servers in Java end connections that ping more often than every
	// 5 minutes (MCP-12), so TCP finds a dead host long before.
	pings = 6 * time.Minute
	// probes are TCP's: a host that is gone is noticed after a minute.
	probes, lost = 15 * time.Second, 3
	// istioVersion is the version of Istio whose API this build knows. Sources that are an
	// istiod want one.
	istioVersion = "1.31.1"
)

// stream is a SotW ADS stream (MCP-1). The goroutine of Run sends; another one receives.
type stream struct {
	conn    *grpc.ClientConn
	ads     grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	answers chan answer
	node    *corev3.Node // nil after the first request
	running sync.WaitGroup
}

// answer is an answer, or the error that ended the stream.
type answer struct {
	*discoveryv3.DiscoveryResponse
	at  time.Time
	err error
}

// dial opens a stream. Its context is the stream's.
func (w *Watcher) dial(ctx context.Context) (*stream, error) {
	credentials, err := w.cfg.TLS.credentials(w.cfg.Address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probes, Interval: probes, Count: lost}}
	conn, err := grpc.NewClient("passthrough:///"+w.cfg.Address,
		grpc.WithTransportCredentials(credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pings}),
		// A dialer of our own: gRPC's would use a proxy that the environment names.
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return nil, fmt.Errorf("reach xds://%s: %w", w.cfg.Address, err)
	}
	s := &stream{conn: conn, answers: make(chan answer), node: w.node()}
	if s.ads, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx); err != nil {
		_ = conn.Close()
		return nil, w.explain("reach", err)
	}
	s.running.Go(func() { s.receive(ctx) })
	return s, nil
}

// close ends the stream, whose context is done.
func (s *stream) close() {
	_ = s.conn.Close()
	s.running.Wait()
}

// receive hands on the answers until the stream ends.
func (s *stream) receive(ctx context.Context) {
	for {
		r, err := s.ads.Recv()
		select {
		case s.answers <- answer{r, time.Now(), err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// request asks for a type, or answers a response that has this nonce: with the version of
// the last good answer and, if an object is bad, with the reason.
func (s *stream) request(c *collection, nonce, bad string) error {
	r := &discoveryv3.DiscoveryRequest{Node: s.node, TypeUrl: c.url, VersionInfo: c.accepted, ResponseNonce: nonce}
	if bad != "" {
		r.ErrorDetail = &statusv1.Status{Code: int32(codes.InvalidArgument), Message: bad}
	}
	s.node = nil
	return s.ads.Send(r)
}

// node returns what the source is told of this watcher.
func (w *Watcher) node() *corev3.Node {
	meta := map[string]*structpb.Value{
		"GENERATOR": structpb.NewStringValue("api"), "NAMESPACE": structpb.NewStringValue(w.cfg.Namespace),
		"ISTIO_VERSION": structpb.NewStringValue(istioVersion),
	}
	if w.cfg.Revision != "" {
		meta["ISTIO_REVISION"] = structpb.NewStringValue(w.cfg.Revision)
	}
	ns := w.cfg.Namespace
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~127.0.0.1~%s.%s~%[2]s.svc.cluster.local", w.cfg.ID, ns),
		Metadata: &structpb.Struct{Fields: meta},
	}
}

// explain returns an error of gRPC for people.
func (w *Watcher) explain(what string, err error) error {
	said := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		said = "the source refuses this watcher: " + said + "; give it the certificate that the source wants"
	case codes.Unimplemented:
		said = "it serves no ADS: " + said + "; give the address of a source of MCP-over-xDS"
	case codes.ResourceExhausted:
		said += fmt.Sprintf("; an answer may have %d MiB at most", maxAnswer>>20)
	}
	return fmt.Errorf("%s xds://%s: %s", what, w.cfg.Address, said)
}
