package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// comeback is the average time until a refused proxy retries.
const comeback = 200 * time.Millisecond

// window is how much a server may send ahead: Envoy's own default.
const window = 16 << 20

func dial(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithDisableHealthCheck(), grpc.WithNoProxy(),
	)
}

func open(ctx context.Context, conn *grpc.ClientConn, m Mode) (grpc.ClientStream, error) {
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	s, err := conn.NewStream(ctx, desc, m.method(), grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		return nil, fmt.Errorf("open a stream to %s: %w", conn.Target(), err)
	}
	return s, nil
}

// proxy is one client. Its goroutine owns it.
type proxy struct {
	index int
	fleet *Fleet
	node  []byte

	asked    Type // the last type that the proxy asked for
	answered bool // the server has sent something
	synced   bool // all types have been acknowledged
}

// run asks and acknowledges until ctx ends.
func (p *proxy) run(ctx context.Context) error {
	conn, err := dial(p.fleet.target)
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		err := p.converse(ctx, conn)
		if p.answered || status.Code(err) != codes.Unavailable || conn.GetState() != connectivity.Ready {
			return err
		}
		p.fleet.refused.Add(1)
		if !sleep(ctx, rand.N(2*comeback)) {
			return err
		}
	}
}

// sleep reports whether ctx is still alive after d.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// converse opens a stream, and asks and acknowledges until it ends.
func (p *proxy) converse(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := open(ctx, conn, p.fleet.mode)
	if err != nil {
		return err
	}
	first := p.fleet.phrases[CDS].first(p.fleet.mode, p.node)
	// After EOF, RecvMsg returns the error.
	if err := stream.SendMsg(first); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for {
		// Only the first proxy keeps its responses, because all proxies get the same.
		r := response{keep: p.index == 0 && p.synced}
		if err := stream.RecvMsg(&r); err != nil {
			return gone(err)
		}
		p.answered = true
		if err := p.take(stream, &r); err != nil {
			return gone(err)
		}
	}
}

// take acknowledges a response. After the first response of a type, it asks for
// the next type.
func (p *proxy) take(stream grpc.ClientStream, r *response) error {
	f := p.fleet
	t := typeOf(r.typeURL)
	if t < 0 {
		return fmt.Errorf("received %q, which it has not asked for", r.typeURL)
	}
	f.sent.Add(int64(r.size))
	if err := stream.SendMsg(f.phrases[t].acknowledge(f.mode, r.version, r.nonce)); err != nil {
		return err
	}
	if t == p.asked && t < RDS {
		p.asked++
		return stream.SendMsg(f.phrases[p.asked].first(f.mode, nil))
	}
	if p.synced || t == RDS {
		p.synced = true
		f.received(p.index, t, r, time.Now())
	}
	return nil
}

// gone replaces an EOF of grpc by an error that the server ended the stream.
func gone(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the server ended the stream")
	}
	return err
}
