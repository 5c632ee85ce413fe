package mcp

import (
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/kind"
)

// maxTypes is how many types a stream may ask for: several times those that there are.
const maxTypes = 128

// Request is a request of a sink.
type Request struct {
	Type, Nonce string
	Named       bool // it names resources
	Rejected    bool
	Error       string // why
}

// Response is a set for a sink.
type Response struct {
	Type, Nonce string
	Kind        string // empty: no kind is of the type
	Set         *Set
}

// Answer is what a request says about a response.
type Answer struct {
	Kind     string // of the response
	Rejected bool
}

// Stream is the stream of a sink: what it has asked for, was sent, and has answered. One
// response of a type is without an answer at a time; the next one has the newest set. A Stream
// is not safe for concurrent use.
type Stream struct {
	catalog             *Catalog
	namespace, revision string
	prefix              string // of nonces
	nonces              uint64
	types               map[string]*subscription
	order               []string // as they were asked for
}

// subscription is a type that a sink has asked for.
type subscription struct {
	kind  *kind.Kind // nil: unknown
	sink  *configv1.McpSink
	moved uint64 // of the catalog, when it was looked at last
	sent  delivery
	acked delivery
	// waits is the nonce of the response that has no answer; empty: none waits.
	waits string
	nack  *Nack // the answer to sent; nil: it was not rejected
}

// delivery is a set that was sent.
type delivery struct {
	set     *Set // nil: none
	version ident.Position
	at      time.Time // when it was sent, or answered
}

// Nack is why a sink has rejected a response.
type Nack struct {
	Message string
	At      time.Time
}

// NewStream returns the stream of a sink. The prefix of its nonces is to differ from those of
// other streams.
func NewStream(c *Catalog, namespace, revision, prefix string) *Stream {
	return &Stream{catalog: c, namespace: namespace, revision: revision, prefix: prefix, types: map[string]*subscription{}}
}

// Refusal returns why the client gets nothing; nil: it gets what an entry of the MeshPolicy
// says (MCP-16).
func (s *Stream) Refusal() error {
	_, err := s.sink()
	return err
}

// sink returns what the client is sent, or why it is refused.
func (s *Stream) sink() (*configv1.McpSink, error) {
	if sink := s.catalog.Sink(s.namespace, s.revision); sink != nil {
		return sink, nil
	}
	return nil, status.Errorf(codes.PermissionDenied,
		"no entry of mcp.sinks in MeshPolicy default is for a client of namespace %q and revision %q: add one, such as {nodeNamespace: %[1]s}", s.namespace, s.revision)
}

// Request handles a request. The answer is nil if the request answers no response.
func (s *Stream) Request(now time.Time, r Request) (*Answer, error) {
	switch {
	case r.Type == "":
		return nil, status.Error(codes.InvalidArgument, "a request has no type_url: ask for GROUP/VERSION/KIND")
	case r.Named:
		return nil, status.Errorf(codes.InvalidArgument, "a request for %s names resources: MCP-over-xDS has whole sets only", r.Type)
	}
	t := s.types[r.Type]
	if t == nil {
		// A first request may have a nonce: istiod sends the time (MCP-13).
		if len(s.types) == maxTypes {
			return nil, status.Errorf(codes.InvalidArgument, "the stream asks for more than %d types", maxTypes)
		}
		s.types[r.Type] = &subscription{kind: s.catalog.kindOf(r.Type)}
		s.order = append(s.order, r.Type)
		return nil, nil
	}
	if t.waits == "" || r.Nonce != t.waits {
		return nil, nil // about an earlier response
	}
	t.waits = ""
	answer := &Answer{Kind: t.name(), Rejected: r.Rejected}
	if r.Rejected {
		t.nack = &Nack{r.Error, now}
		return answer, nil
	}
	t.nack = nil
	t.acked = delivery{t.sent.set, t.sent.version, now}
	return answer, nil
}

// Next returns the next response, nil if none is due, or why the stream ends.
func (s *Stream) Next(now time.Time) (*Response, error) {
	sink, err := s.sink()
	if err != nil {
		return nil, err
	}
	version := s.catalog.Version()
	for _, url := range s.order {
		t := s.types[url]
		if t.waits != "" || t.sent.set != nil && !s.moved(t, sink) {
			continue
		}
		set := empty
		if t.kind != nil {
			set, t.moved = s.catalog.set(t.kind, sink)
		}
		t.sink = sink
		if t.sent.set != nil && t.sent.set.Version == set.Version {
			continue
		}
		s.nonces++
		t.waits = s.prefix + strconv.FormatUint(s.nonces, 10)
		t.sent, t.nack = delivery{set, version, now}, nil
		return &Response{Type: url, Nonce: t.waits, Kind: t.name(), Set: set}, nil
	}
	return nil, nil
}

// moved reports whether the set of a type may differ from the one that was looked at last.
func (s *Stream) moved(t *subscription, sink *configv1.McpSink) bool {
	return t.kind != nil && (t.sink != sink || t.moved != s.catalog.changes(t.kind))
}

// name returns the name of the kind; empty: it is unknown.
func (t *subscription) name() string {
	if t.kind == nil {
		return ""
	}
	return t.kind.Name
}

// Status is the state of a type on a stream.
type Status struct {
	Type                      string
	Sent, Acked               ident.Position
	SentVersion, AckedVersion string
	SentAt, AckedAt           time.Time
	Resources                 int
	Waits                     bool // for the answer to a response
	Nack                      *Nack
}

// Status returns the state of each type, in the order in which they were asked for.
func (s *Stream) Status() []Status {
	sink, version := s.catalog.Sink(s.namespace, s.revision), s.catalog.Version()
	all := make([]Status, 0, len(s.order))
	for _, url := range s.order {
		t := s.types[url]
		st := Status{Type: url, Waits: t.waits != "", Nack: t.nack}
		if t.sent.set != nil {
			st.Sent, st.SentVersion, st.SentAt, st.Resources = t.sent.version, t.sent.set.Version, t.sent.at, t.sent.set.Resources
			if !s.moved(t, sink) {
				st.Sent = version // nothing has changed for the sink since
			}
		}
		if t.acked.set != nil {
			st.Acked, st.AckedVersion, st.AckedAt = t.acked.version, t.acked.set.Version, t.acked.at
			if st.AckedVersion == st.SentVersion {
				st.Acked = st.Sent
			}
		}
		all = append(all, st)
	}
	return all
}
