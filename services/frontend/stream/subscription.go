package stream

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
)

// Subscription is of what resources of a type the Stream has to be told by
// Update when they change: all, or those of these names. Request and Next may
// make it another.
func (s *Stream) Subscription(t ident.ResourceType) (all bool, n *names.Names) {
	w := s.watches[t]
	switch {
	case w == nil:
		return false, nil
	case w.wildcard:
		return true, nil
	}
	return false, w.names
}
