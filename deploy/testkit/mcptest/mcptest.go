// Package mcptest runs scripted sources of MCP-over-xDS for tests. A source holds sets of
// resources by type, and behaves as the servers that users have: which types it answers,
// what it names versions, and whether it sends whole sets or changes only is up to the test.
package mcptest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
)

// ServiceEntries is the type of ServiceEntries in the version that today's istiod stores.
const ServiceEntries = "networking.istio.io/v1/ServiceEntry"

// Source is a server of one ADS service on loopback. Its methods are safe for concurrent
// use.
type Source struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	options Options
	address string

	mu       sync.Mutex
	server   *grpc.Server // nil while it is down
	serving  sync.WaitGroup
	sets     map[string][]*anypb.Any
	versions map[string]int
	streams  map[*stream]bool
	opened   int
	requests []*discoveryv3.DiscoveryRequest
	changed  chan struct{} // closed at the next change of requests or streams
}

// Options change a source. With the zero value it answers every type at once, with a set
// that is empty until Set, over plain TCP.
type Options struct {
	// Silent types are never answered.
	Silent func(url string) bool
	// Unversioned answers have no version.
	Unversioned bool
	// Credentials protect connections; nil: nothing does.
	Credentials credentials.TransportCredentials
}

// stream is a stream of a client.
type stream struct {
	asked map[string]bool
	queue chan *discoveryv3.DiscoveryResponse
	end   chan struct{}
}

// queued is how many answers may wait for a client.
const queued = 1024

// Start runs a source until the test ends.
func Start(t testing.TB, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Down)
	return s
}

// New runs a source, which the caller ends with Down.
func New(o Options) (*Source, error) {
	s := &Source{options: o, sets: map[string][]*anypb.Any{}, versions: map[string]int{}, streams: map[*stream]bool{}, changed: make(chan struct{})}
	return s, s.listen("127.0.0.1:0")
}

// Address returns the source's address, host:port. It stays the same.
func (s *Source) Address() string { return s.address }

func (s *Source) listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var options []grpc.ServerOption
	if s.options.Credentials != nil {
		options = append(options, grpc.Creds(s.options.Credentials))
	}
	server := grpc.NewServer(options...)
	s.address, s.server = l.Addr().String(), server
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	s.serving.Go(func() { _ = server.Serve(l) })
	return nil
}

// Down ends all connections and refuses new ones.
func (s *Source) Down() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server != nil {
		server.Stop()
		s.serving.Wait()
	}
}

// Up accepts connections again, at the same address.
func (s *Source) Up() error { return s.listen(s.address) }

// Cut ends all streams; the source stays up.
func (s *Source) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		close(st.end)
		delete(s.streams, st)
	}
}

// Set replaces what the source has of a type and pushes the set to all clients that asked
// for it.
func (s *Source) Set(url string, set ...*anypb.Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[url] = slices.Clone(set)
	s.versions[url]++
	s.push(url, set)
}

// Push sends these resources alone, without changing what a new client gets.
func (s *Source) Push(url string, part ...*anypb.Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[url]++
	s.push(url, part)
}

// Unasked sends resources of another type to the clients that asked for url.
func (s *Source) Unasked(url, other string, set ...*anypb.Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.asked[url] {
			st.queue <- s.answer(other, set)
		}
	}
}

// push sends resources to the clients that asked for their type. mu is held.
func (s *Source) push(url string, set []*anypb.Any) {
	for st := range s.streams {
		if st.asked[url] {
			st.queue <- s.answer(url, set)
		}
	}
}

func (s *Source) answer(url string, set []*anypb.Any) *discoveryv3.DiscoveryResponse {
	r := &discoveryv3.DiscoveryResponse{TypeUrl: url, Resources: set, Nonce: fmt.Sprintf("%s#%d", url, s.versions[url])}
	if !s.options.Unversioned {
		r.VersionInfo = fmt.Sprint(s.versions[url])
	}
	return r
}

// Streams returns how many streams clients have opened.
func (s *Source) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// Request waits a minute for a request that fits, also an earlier one, and returns the
// first.
func (s *Source) Request(t testing.TB, fits func(*discoveryv3.DiscoveryRequest) bool) *discoveryv3.DiscoveryRequest {
	t.Helper()
	late := time.After(time.Minute)
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.requests, fits)
		if i >= 0 {
			r := s.requests[i]
			s.mu.Unlock()
			return r
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			t.Fatal("no such request came within a minute")
		}
	}
}

// Types returns the types that clients asked for, sorted.
func (s *Source) Types() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, r := range s.requests {
		all[r.GetTypeUrl()] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// StreamAggregatedResources implements the service.
func (s *Source) StreamAggregatedResources(ads discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	st := &stream{asked: map[string]bool{}, queue: make(chan *discoveryv3.DiscoveryResponse, queued), end: make(chan struct{})}
	s.mu.Lock()
	s.streams[st] = true
	s.opened++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}()
	failed := make(chan error, 1)
	go func() { // it ends with the stream
		for {
			r, err := ads.Recv()
			if err != nil {
				failed <- err
				return
			}
			s.take(st, r)
		}
	}()
	for {
		select {
		case a := <-st.queue:
			if err := ads.Send(a); err != nil {
				return err
			}
		case <-st.end:
			return errors.New("the source ends the stream")
		case err := <-failed:
			return err
		}
	}
}

// take answers the first request of each type.
func (s *Source) take(st *stream, r *discoveryv3.DiscoveryRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	close(s.changed)
	s.changed = make(chan struct{})
	url := r.GetTypeUrl()
	if st.asked[url] {
		return
	}
	st.asked[url] = true
	if s.options.Silent == nil || !s.options.Silent(url) {
		st.queue <- s.answer(url, s.sets[url])
	}
}

// Resource returns a resource with a name, NAMESPACE/NAME, and a body; nil: none.
func Resource(name string, body proto.Message) *anypb.Any {
	return Described(&mcp.Metadata{Name: name}, body)
}

// Described returns a resource with metadata and a body; nil: none. It panics on a body
// that cannot be encoded.
func Described(m *mcp.Metadata, body proto.Message) *anypb.Any {
	r := &mcp.Resource{Metadata: m}
	if body != nil {
		r.Body = Bare(body)
	}
	return Bare(r)
}

// Bare returns a message without metadata. Equal messages have equal bytes.
func Bare(m proto.Message) *anypb.Any {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: b}
}
