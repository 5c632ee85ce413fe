// Package sds serves the secrets of a workload to the Envoy on the same machine, over a
// unix socket (AGT-3). A stream hears nothing of a secret until it is there, so that an
// Envoy that starts waits for its certificate.
//
// It does not use go-control-plane's caches: they answer for a secret that is missing
// with an empty response, which ends Envoy's wait.
package sds

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// typeURL is the type of all secrets.
const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// Secrets are the secrets that a Server has. It is safe for concurrent use.
type Secrets struct {
	mu      sync.Mutex
	all     map[string]entry
	changed chan struct{}
}

type entry struct {
	version string
	secret  *anypb.Any
}

// NewSecrets returns Secrets without any.
func NewSecrets() *Secrets {
	return &Secrets{all: map[string]entry{}, changed: make(chan struct{})}
}

// Set sets a secret. A version that is the current one changes nothing.
func (s *Secrets) Set(name, version string, secret *anypb.Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name].version == version {
		return
	}
	s.all[name] = entry{version, secret}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Has reports whether all of these secrets are there.
func (s *Secrets) Has(names ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := s.all[n]; return !ok })
}

// newer returns those of the wanted secrets whose version is not the one in sent.
func (s *Secrets) newer(wanted []string, sent map[string]string) (map[string]entry, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]entry{}
	for _, name := range wanted {
		if e, ok := s.all[name]; ok && e.version != sent[name] {
			found[name] = e
		}
	}
	return found, s.changed
}

// Server serves Secrets.
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer

	secrets *Secrets
	log     *slog.Logger
}

// NewServer returns a server.
func NewServer(s *Secrets, log *slog.Logger) *Server { return &Server{secrets: s, log: log} }

// Limits of what a client may send: it asks for a few names.
const (
	maxRequest = 1 << 20 // Envoy's node has all of its extensions
	maxNames   = 16
	maxStreams = 1000
)

// Run serves on l until ctx is done.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams))
	secretv3.RegisterSecretDiscoveryServiceServer(g, s)
	defer context.AfterFunc(ctx, g.Stop)()
	if err := g.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}

// receive hands on what a stream sends, until it ends.
func receive[R any](ctx context.Context, recv func() (R, error)) <-chan R {
	out := make(chan R)
	go func() { // ends with the stream
		defer close(out)
		for {
			r, err := recv()
			if err != nil {
				return
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// nonce returns a random text that no earlier response had.
func nonce() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (s *Server) check(typ string, names int) error {
	switch {
	case typ != "" && typ != typeURL:
		return status.Errorf(codes.InvalidArgument, "this socket has secrets only, not %s", typ)
	case names > maxNames:
		return status.Errorf(codes.InvalidArgument, "%d names: at most %d are allowed", names, maxNames)
	}
	return nil
}

// StreamSecrets implements the protocol with the state of the world.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	ctx := stream.Context()
	requests := receive(ctx, stream.Recv)
	var wanted []string
	sent, last, n := map[string]string{}, "", 0
	for {
		found, changed := s.secrets.newer(wanted, sent)
		if len(found) > 0 {
			n++
			resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: strconv.Itoa(n), Nonce: nonce()}
			for name, e := range found {
				resp.Resources, sent[name] = append(resp.Resources, e.secret), e.version
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
			last = resp.GetNonce()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if err := s.check(r.GetTypeUrl(), len(r.GetResourceNames())); err != nil {
				return err
			}
			if r.GetErrorDetail() != nil {
				s.log.Warn("Envoy refuses a secret", "secrets", r.GetResourceNames(), "error", r.GetErrorDetail().GetMessage())
			}
			if r.GetResponseNonce() != "" && r.GetResponseNonce() != last {
				continue // it answers an earlier response; another request follows
			}
			for _, name := range r.GetResourceNames() {
				if !slices.Contains(wanted, name) {
					delete(sent, name)
				}
			}
			wanted = r.GetResourceNames()
		}
	}
}

// DeltaSecrets implements the incremental protocol.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	ctx := stream.Context()
	requests := receive(ctx, stream.Recv)
	var wanted []string
	sent := map[string]string{}
	for {
		found, changed := s.secrets.newer(wanted, sent)
		if len(found) > 0 {
			resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce()}
			for name, e := range found {
				resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: e.version, Resource: e.secret})
				sent[name] = e.version
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if err := s.check(r.GetTypeUrl(), len(wanted)+len(r.GetResourceNamesSubscribe())); err != nil {
				return err
			}
			if r.GetErrorDetail() != nil {
				s.log.Warn("Envoy refuses a secret", "secrets", wanted, "error", r.GetErrorDetail().GetMessage())
			}
			for _, name := range r.GetResourceNamesSubscribe() {
				delete(sent, name) // a client that asks again wants it again
				if !slices.Contains(wanted, name) {
					wanted = append(wanted, name)
				}
			}
			for name, version := range r.GetInitialResourceVersions() {
				sent[name] = version
			}
			wanted = slices.DeleteFunc(wanted, func(name string) bool { return slices.Contains(r.GetResourceNamesUnsubscribe(), name) })
		}
	}
}

// FetchSecrets implements one request.
func (s *Server) FetchSecrets(_ context.Context, r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	if err := s.check(r.GetTypeUrl(), len(r.GetResourceNames())); err != nil {
		return nil, err
	}
	found, _ := s.secrets.newer(r.GetResourceNames(), nil)
	if len(found) == 0 {
		return nil, status.Error(codes.Unavailable, "the certificate is not here yet")
	}
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: nonce()}
	for _, e := range found {
		resp.Resources = append(resp.Resources, e.secret)
	}
	return resp, nil
}
