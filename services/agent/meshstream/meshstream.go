// Package meshstream asks the frontends for what an agent itself needs: the roots of the
// mesh, and the names that it answers by DNS. That the agent has applied the roots is its
// report (CA-10). It also hears there that an operator wants the connections of its Envoy
// to end (KEY-12).
package meshstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/agent/names"
)

const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// steady is how long a stream lasts that counts as good.
	steady = time.Minute
)

// Secret is the type URL of secrets, Roots the name of the secret with the roots.
const (
	Secret = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	Roots  = "ROOTCA"
)

// Config configures a Stream.
type Config struct {
	Node *corev3.Node
	// Addresses are those of frontends, HOST:PORT; they are tried in turn.
	Addresses []string
	// TLS returns the settings for the next connection.
	TLS func(address string) (*tls.Config, error)
	// Apply takes the roots of the mesh, in PEM. An error is the reason of a NACK.
	Apply func(roots []byte) error
	// Names takes the names of the mesh (AGT-4); nil: the agent answers none.
	Names *names.Names
	// Proxy is the node id of the agent's Envoy.
	Proxy string
	// EndConnections ends the connections of Envoy's clients, and returns when the last of
	// them has ended.
	EndConnections func() (until time.Time, err error)
	Log            *slog.Logger
}

// Stream keeps a stream to a frontend.
type Stream struct {
	Config

	trouble atomic.Pointer[error]
	version atomic.Pointer[string] // of the roots
}

// New returns a Stream. Run connects.
func New(c Config) *Stream { return &Stream{Config: c} }

// Trouble returns why the agent is not connected, or nil.
func (s *Stream) Trouble() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Run connects, and connects again, until ctx is done.
func (s *Stream) Run(ctx context.Context) error {
	pause := firstRetry
	for i := 0; ; i++ {
		began := time.Now()
		address := s.Addresses[i%len(s.Addresses)]
		err := s.once(ctx, address)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) >= steady {
			pause = firstRetry
		}
		err = fmt.Errorf("no stream from the frontend at %s: %w", address, err)
		if before := s.trouble.Swap(&err); before == nil || (*before).Error() != err.Error() {
			s.Log.Warn("the agent gets no roots and names of the mesh; it keeps those that it has", "error", err)
		}
		timer := time.NewTimer(pause/2 + mathrand.N(pause/2+1))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, lastRetry)
	}
}

// once serves one stream, until it ends.
func (s *Stream) once(ctx context.Context, address string) error {
	conf, err := s.TLS(address)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	first := &discoveryv3.DeltaDiscoveryRequest{Node: s.Node, TypeUrl: Secret, ResourceNamesSubscribe: []string{Roots}}
	if v := s.version.Load(); v != nil {
		first.InitialResourceVersions = map[string]string{Roots: *v}
	}
	if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s.Names != nil {
		all := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: names.TypeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: s.Names.Versions()}
		if err := stream.Send(all); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	following := make(chan struct{})
	go func() {
		defer close(following)
		s.follow(ctx, conn)
	}()
	defer func() { cancel(); <-following }()
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		s.trouble.Store(nil)
		ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}
		if err := s.apply(resp); err != nil {
			s.Log.Warn("refused what a frontend sent", "error", err)
			ack.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		}
		if err := stream.Send(ack); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// apply takes the roots or the names of a response. Roots that a frontend does not have leave those
// that the agent has.
func (s *Stream) apply(resp *discoveryv3.DeltaDiscoveryResponse) error {
	if resp.GetTypeUrl() == names.TypeURL && s.Names != nil {
		return s.Names.Take(resp)
	}
	if resp.GetTypeUrl() != Secret {
		return fmt.Errorf("the agent did not ask for %s", resp.GetTypeUrl())
	}
	for _, r := range resp.GetResources() {
		if r.GetName() != Roots {
			return fmt.Errorf("the agent did not ask for %q", r.GetName())
		}
		roots, err := read(r.GetResource())
		if err == nil {
			err = s.Apply(roots)
		}
		if err != nil {
			return err
		}
		version := r.GetVersion()
		s.version.Store(&version)
		s.Log.Info("applied the roots of the mesh", "version", version)
	}
	return nil
}

func read(resource *anypb.Any) ([]byte, error) {
	secret := new(tlsv3.Secret)
	if err := resource.UnmarshalTo(secret); err != nil {
		return nil, err
	}
	ca := secret.GetValidationContext().GetTrustedCa()
	roots := ca.GetInlineBytes()
	if len(roots) == 0 {
		roots = []byte(ca.GetInlineString())
	}
	if !x509.NewCertPool().AppendCertsFromPEM(roots) {
		return nil, errors.New("the roots of the mesh have no certificate")
	}
	return roots, nil
}
