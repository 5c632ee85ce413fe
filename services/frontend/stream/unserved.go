package stream

import (
	"cmp"

	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// absent is resources of a type that is not served.
type absent struct {
	url   string
	names []string
}

// size returns the memory that it takes.
func (a *absent) size() int {
	n := costOfAbsent + len(a.url)
	for _, name := range a.names {
		n += costOfName + len(name)
	}
	return n
}

// What names and requests take that wait, besides their texts.
const costOfName, costOfAbsent = 16, 64

// Waiting returns the memory of what was requested and waits: names of types that are
// not served, until Next has answered them, and, until the head is known, the versions
// that the client has and the names that it has asked for since.
func (s *Stream) Waiting() int {
	n := s.absentSize
	for _, w := range s.watches {
		if w != nil && w.phase == unresolved {
			n += w.initial.Size() + w.askedSize
		}
	}
	return n
}

// refuse handles a request for a type that is not served. In delta, the resources
// that the client names are removed at once, which ends its wait for them (E35); in
// SotW nothing can tell it. A resource that the client has from another control
// plane is left alone, because it may be in use (E44). A gRPC client stops reading
// at a type that it does not know (G2).
func (s *Stream) refuse(r Request) error {
	if r.Nonce != "" && r.Names.Len() == 0 {
		return nil // the answer to a response of that type
	}
	s.cfg.Observe(Event{Kind: Unsupported, Detail: r.TypeURL})
	if !s.cfg.Delta || s.cfg.GRPC || s.cfg.Only != nil {
		return nil
	}
	has := map[string]bool{wildcard: true}
	for name := range r.Initial.All() {
		has[string(name)] = true
	}
	a := absent{url: r.TypeURL}
	for _, name := range (*names.Names)(nil).Lacking(r.Names) {
		if !has[name] {
			a.names = append(a.names, name)
		}
	}
	if len(a.names) == 0 {
		return nil
	}
	s.absent = append(s.absent, a)
	s.absentSize += a.size()
	if s.absentNames += len(a.names); s.absentNames > names.Max {
		return tooMany(r.TypeURL)
	}
	return nil
}

// answerAbsent returns the response to the oldest request for a type that is not
// served.
func (s *Stream) answerAbsent() Response {
	a := s.absent[0]
	s.absentSize -= a.size()
	s.absentNames -= len(a.names)
	s.absent[0] = absent{}
	if s.absent = s.absent[1:]; len(s.absent) == 0 {
		s.absent = nil
	}
	s.greeting = greeted
	return Response{Unserved: a.url, Delta: true, Version: xds.Sum{}.String(), Nonce: s.nextNonce(), Removed: a.names}
}

// URL returns the type URL of the response.
func (r *Response) URL() string { return cmp.Or(r.Unserved, r.Type.URL()) }
