package index

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/proxy"
)

// Selector selects the proxies that get a raw resource. Equal selectors have
// equal texts.
type Selector struct {
	place    place
	metadata *structpb.Struct
	text     string
}

// place holds cluster, region, zone, sub_zone, namespace and the kind of client; in
// a Selector, "" is any.
type place [6]string

func placeOf(p *proxy.Proxy) place {
	return place{p.Cluster, p.Locality.Region, p.Locality.Zone, p.Locality.SubZone, p.Namespace, p.Kind()}
}

// everyProxy is the text of the selector that matches all proxies.
const everyProxy = "*"

// newSelector reads a selector; nil selects all proxies. It selects those of one
// namespace only, unless that is empty (XDS-7).
func newSelector(spec *configv1.NodeSelector, namespace string) (*Selector, error) {
	l := spec.GetLocality()
	s := &Selector{place{spec.GetCluster(), l.GetRegion(), l.GetZone(), l.GetSubZone(), namespace, spec.GetClient()}, spec.GetMetadata(), everyProxy}
	var parts []string
	for i, field := range []string{"cluster", "region", "zone", "sub_zone", "namespace", "client"} {
		if s.place[i] != "" {
			parts = append(parts, fmt.Sprintf("%s=%q", field, s.place[i]))
		}
		if i == 0 && len(s.metadata.GetFields()) > 0 {
			b, err := json.Marshal(s.metadata.AsMap()) // one line, keys sorted
			if err != nil {
				return nil, fmt.Errorf("metadata: %w", err)
			}
			parts = append(parts, "metadata="+string(b))
		}
	}
	if len(parts) > 0 {
		s.text = strings.Join(parts, " ")
	}
	return s, nil
}

// String returns the selector's text.
func (s *Selector) String() string { return s.text }

// matches reports whether a proxy at that place, with that metadata, has
// everything that the selector sets.
func (s *Selector) matches(at *place, metadata *structpb.Struct) bool {
	for i, want := range &s.place {
		if want != "" && want != at[i] {
			return false
		}
	}
	return agree(s.metadata, metadata, false)
}

// overlaps reports whether a proxy might match both s and o.
func (s *Selector) overlaps(o *Selector) bool {
	for i, theirs := range &o.place {
		if s.place[i] != "" && theirs != "" && s.place[i] != theirs {
			return false
		}
	}
	return agree(s.metadata, o.metadata, true)
}

// agree reports whether have has the fields of want: an object by its fields in
// turn, anything else with an equal value. If partial, have may lack fields.
func agree(want, have *structpb.Struct, partial bool) bool {
	for name, w := range want.GetFields() {
		h, ok := have.GetFields()[name]
		if !ok && partial {
			continue
		}
		ws, wantStruct := w.GetKind().(*structpb.Value_StructValue)
		hs, haveStruct := h.GetKind().(*structpb.Value_StructValue)
		switch {
		case !ok:
			return false
		case wantStruct && haveStruct:
			if !agree(ws.StructValue, hs.StructValue, partial) {
				return false
			}
		case !proto.Equal(w, h):
			return false
		}
	}
	return true
}
