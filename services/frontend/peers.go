package frontend

import (
	"fmt"
	"math"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// peers limits how many streams, connections, and bytes of metadata and names the
// clients behind one address may have, and how many streams the clients with one
// identity may have. It is safe for concurrent use.
type peers struct {
	perAddress, perIdentity int // streams; 0: no limit

	mu         sync.Mutex
	addresses  map[string]*holder
	identities map[string]*holder
}

// holder is an address or an identity, and what its clients have.
type holder struct {
	peers *peers
	name  string

	// guarded by peers.mu
	of                   map[string]*holder // peers.addresses or peers.identities
	streams, connections int
	metadata             int // bytes in memory
	names, absent        int // bytes in memory, of names and of answers to absent names

	underWay int64 // bytes of requests; guarded by budget.mu

	// guarded by admission.mu
	waiting [2]int // streams in each line
	places  int    // streams in their first answers
}

func newPeers(l Limits) *peers {
	return &peers{
		perAddress: l.StreamsPerAddress, perIdentity: l.StreamsPerIdentity,
		addresses: make(map[string]*holder), identities: make(map[string]*holder),
	}
}

// change finds the holder of a name, or adds one, calls f, which reports whether
// it changed the holder, and forgets a holder that has nothing.
func (p *peers) change(of map[string]*holder, name string, f func(*holder) bool) (*holder, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := of[name]
	if h == nil {
		h = &holder{peers: p, name: name, of: of}
		of[name] = h
	}
	ok := f(h)
	h.forget()
	return h, ok
}

// forget removes a holder that has nothing; peers.mu is held.
func (h *holder) forget() {
	if h.streams == 0 && h.connections == 0 && h.metadata == 0 && h.names == 0 && h.absent == 0 {
		delete(h.of, h.name)
	} else {
		h.of[h.name] = h
	}
}

// share is what a stream counts for.
type share struct{ address, identity *holder }

// enter counts a stream, or returns why it may not begin. The share must leave.
func (p *peers) enter(at place) (*share, error) {
	count := func(of map[string]*holder, name, what, setting string, most int) (*holder, error) {
		h, ok := p.change(of, name, func(h *holder) bool {
			if most > 0 && h.streams >= most {
				return false
			}
			h.streams++
			return true
		})
		if !ok {
			return nil, &limitError{reason: what, err: status.Error(codes.Unavailable, fmt.Sprintf(
				"%s %s has %d streams already, the limit: try another frontend, or raise --%s", what, name, most, setting))}
		}
		return h, nil
	}
	s := new(share)
	var err error
	if s.address, err = count(p.addresses, at.address, "address", "streams-per-address", p.perAddress); err != nil {
		return nil, err
	}
	if at.identity != "" {
		if s.identity, err = count(p.identities, at.identity, "identity", "streams-per-identity", p.perIdentity); err != nil {
			s.leave()
			return nil, err
		}
	}
	return s, nil
}

// leave ends what enter began.
func (s *share) leave() {
	for _, h := range []*holder{s.address, s.identity} {
		if h == nil {
			continue
		}
		h.peers.mu.Lock()
		h.streams--
		h.forget()
		h.peers.mu.Unlock()
	}
}

// connect counts a connection, and reports whether the address may have another
// one: it may have as many as streams. The caller closes the holder's connection
// with disconnect.
func (p *peers) connect(address string) (*holder, bool) {
	return p.change(p.addresses, address, func(h *holder) bool {
		if p.perAddress > 0 && h.connections >= p.perAddress {
			return false
		}
		h.connections++
		return true
	})
}

func (h *holder) disconnect() {
	h.peers.mu.Lock()
	defer h.peers.mu.Unlock()
	h.connections--
	h.forget()
}

// addMetadata adds bytes of metadata, which may be negative, and reports whether
// the address may have them.
func (h *holder) addMetadata(bytes int) bool { return h.add(&h.metadata, bytes, metadataShare) }

// addNames is addMetadata for the names that streams ask for.
func (h *holder) addNames(bytes int) bool { return h.add(&h.names, bytes, namesShare) }

// addAbsent is addMetadata for the answers to names that do not exist.
func (h *holder) addAbsent(bytes int) bool { return h.add(&h.absent, bytes, absentShare) }

// absentLeft returns how many bytes addAbsent may add.
func (h *holder) absentLeft() int {
	p := h.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.perAddress == 0 {
		return math.MaxInt / 2
	}
	return p.perAddress*absentShare - h.absent
}

func (h *holder) add(to *int, bytes, share int) bool {
	p := h.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes > 0 && p.perAddress > 0 && *to+bytes > p.perAddress*share {
		return false
	}
	*to += bytes
	h.forget()
	return true
}

// limitError is a refusal, with its reason for metrics.
type limitError struct {
	reason string
	err    error
}

func (e *limitError) Error() string { return e.err.Error() }

// GRPCStatus makes the status of err that of the stream.
func (e *limitError) GRPCStatus() *status.Status { return status.Convert(e.err) }
