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
	waiting := 0
	for _, a := range s.absent {
		waiting += len(a.names)
	}
	if waiting > names.Max {
		return tooMany(r.TypeURL)
	}
	return nil
}

// answerAbsent returns the response to the oldest request for a type that is not
// served.
func (s *Stream) answerAbsent() Response {
	a := s.absent[0]
	if s.absent = s.absent[1:]; len(s.absent) == 0 {
		s.absent = nil
	}
	s.greeting = greeted
	return Response{Unserved: a.url, Delta: true, Version: xds.Sum{}.String(), Nonce: s.nextNonce(), Removed: a.names}
}

// URL returns the type URL of the response.
func (r *Response) URL() string { return cmp.Or(r.Unserved, r.Type.URL()) }
