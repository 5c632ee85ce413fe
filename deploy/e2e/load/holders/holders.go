// Package holders plays proxies that ask a frontend for keys, each on its own
// connection with mutual TLS and one incremental ADS stream, and acknowledge every
// response. They decode no secret beyond its name.
package holders

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/e2e/rig"
)

// Config describes holders of keys.
type Config struct {
	Target  string  // address of the frontend
	Files   rig.TLS // the certificate of all of them, and the CA of the frontend
	Proxies int
	Names   []string // of the secrets that each asks for
}

// Holders are connected proxies. One goroutine owns their methods.
type Holders struct {
	cancel context.CancelCauseFunc
	ended  <-chan struct{} // a proxy failed, or Close was called
	cause  func() error
	all    sync.WaitGroup
	wave   atomic.Pointer[wave]
}

// wave is the expectation that each proxy gets each of its secrets.
type wave struct {
	at   []time.Time // by proxy, of its last response
	left atomic.Int64
	done chan struct{}
}

// Connect connects all proxies at once, and expects that each gets each secret. The
// caller closes them, even if ctx has ended.
func Connect(ctx context.Context, c Config) (*Holders, error) {
	secure, err := client(c.Files)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h := &Holders{cancel: cancel, ended: ctx.Done(), cause: func() error { return context.Cause(ctx) }}
	h.expect(c.Proxies)
	for i := range c.Proxies {
		h.all.Go(func() {
			err := h.hold(ctx, i, c, secure)
			for status.Code(err) == codes.Unavailable && h.wave.Load().at[i].IsZero() && sleep(ctx, rand.N(2*comeback)) {
				err = h.hold(ctx, i, c, secure) // a frontend admits only so many at a time
			}
			if err != nil {
				cancel(fmt.Errorf("proxy %d: %w", i, err))
			}
		})
	}
	return h, nil
}

// comeback is the average time until a refused proxy retries.
const comeback = 200 * time.Millisecond

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

// errClosed is the error with which proxies end that were closed.
var errClosed = errors.New("closed")

// Close disconnects all proxies and waits for them.
func (h *Holders) Close() {
	h.cancel(errClosed)
	h.all.Wait()
}

func (h *Holders) expect(proxies int) {
	w := &wave{at: make([]time.Time, proxies), done: make(chan struct{})}
	w.left.Store(int64(proxies))
	h.wave.Store(w)
}

// Expect begins the expectation of one more response at each proxy. The one before
// must have ended.
func (h *Holders) Expect() { h.expect(len(h.wave.Load().at)) }

// Wait waits until each proxy has what is expected.
func (h *Holders) Wait(ctx context.Context) error {
	w := h.wave.Load()
	select {
	case <-w.done:
		return nil
	case <-h.ended:
		return h.cause()
	case <-ctx.Done():
		return fmt.Errorf("%d of %d proxies wait for a secret: %w", w.left.Load(), len(w.at), context.Cause(ctx))
	}
}

// Took returns how long after start each proxy had what was expected.
func (h *Holders) Took(start time.Time) []time.Duration {
	var took []time.Duration
	for _, at := range h.wave.Load().at {
		took = append(took, at.Sub(start))
	}
	return took
}

// got notes that a proxy has what it waits for.
func (h *Holders) got(proxy int) error {
	w := h.wave.Load()
	if !w.at[proxy].IsZero() {
		return errors.New("a secret came that nobody changed")
	}
	w.at[proxy] = time.Now()
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

// hold asks for the secrets and acknowledges every response until ctx ends.
func (h *Holders) hold(ctx context.Context, proxy int, c Config, secure credentials.TransportCredentials) error {
	conn, err := grpc.NewClient("passthrough:///"+c.Target, grpc.WithTransportCredentials(secure), grpc.WithDisableServiceConfig(), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node, err := nodeOf(proxy)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: rig.Secret, ResourceNamesSubscribe: c.Names}); err != nil {
		return err
	}
	missing := map[string]bool{}
	for _, name := range c.Names {
		missing[name] = true
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(r.GetRemovedResources()) > 0 {
			return fmt.Errorf("the frontend says that %q does not exist", r.GetRemovedResources())
		}
		first := len(missing) > 0
		for _, s := range r.GetResources() {
			delete(missing, s.GetName())
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rig.Secret, ResponseNonce: r.GetNonce()}); err != nil {
			return err
		}
		if first && len(missing) > 0 {
			continue
		}
		if err := h.got(proxy); err != nil {
			return err
		}
	}
}

// nodeOf returns the node of a router, as deploy/envoy/tls.yaml has it.
func nodeOf(proxy int) (*corev3.Node, error) {
	metadata, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": "edge"}})
	return &corev3.Node{Id: fmt.Sprint("holder-", proxy), Cluster: "keys", UserAgentName: "envoy", Metadata: metadata}, err
}

// client returns the credentials of a proxy.
func client(files rig.TLS) (credentials.TransportCredentials, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s has no certificate", files.CA)
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}), nil
}

// Handshake connects to a server by SNI, and returns the name in its certificate, which
// a CA for localhost has signed.
func Handshake(ctx context.Context, address, sni string, roots *x509.CertPool) (name string, err error) {
	d := tls.Dialer{Config: &tls.Config{
		ServerName: sni, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
			name = s.PeerCertificates[0].Subject.CommonName
			return err
		},
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	return name, conn.Close()
}
