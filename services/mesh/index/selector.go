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
	spec *configv1.NodeSelector
	text string
}

// everyProxy is the text of the selector that matches all proxies.
const everyProxy = "*"

// newSelector reads a selector; nil selects all proxies.
func newSelector(spec *configv1.NodeSelector) (*Selector, error) {
	var parts []string
	add := func(field, value string) {
		if value != "" {
			parts = append(parts, fmt.Sprintf("%s=%q", field, value))
		}
	}
	add("cluster", spec.GetCluster())
	if fields := spec.GetMetadata().GetFields(); len(fields) > 0 {
		b, err := json.Marshal(spec.GetMetadata().AsMap()) // one line, keys sorted
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		parts = append(parts, "metadata="+string(b))
	}
	add("region", spec.GetLocality().GetRegion())
	add("zone", spec.GetLocality().GetZone())
	add("sub_zone", spec.GetLocality().GetSubZone())
	if len(parts) == 0 {
		parts = []string{everyProxy}
	}
	return &Selector{spec: spec, text: strings.Join(parts, " ")}, nil
}

// String returns the selector's text.
func (s *Selector) String() string { return s.text }

// Matches reports whether the proxy's node has everything that the selector
// sets.
func (s *Selector) Matches(p *proxy.Proxy) bool {
	l := s.spec.GetLocality()
	return matchText(s.spec.GetCluster(), p.Cluster) &&
		matchText(l.GetRegion(), p.Locality.Region) &&
		matchText(l.GetZone(), p.Locality.Zone) &&
		matchText(l.GetSubZone(), p.Locality.SubZone) &&
		matchStruct(s.spec.GetMetadata(), p.Metadata)
}

func matchText(want, have string) bool { return want == "" || want == have }

// matchStruct reports whether have has every field of want: an object by its
// fields in turn, anything else with an equal value.
func matchStruct(want, have *structpb.Struct) bool {
	for name, w := range want.GetFields() {
		h, ok := have.GetFields()[name]
		if !ok || !matchValue(w, h) {
			return false
		}
	}
	return true
}

func matchValue(want, have *structpb.Value) bool {
	w, isStruct := want.GetKind().(*structpb.Value_StructValue)
	if !isStruct {
		return proto.Equal(want, have)
	}
	h, ok := have.GetKind().(*structpb.Value_StructValue)
	return ok && matchStruct(w.StructValue, h.StructValue)
}

// overlaps reports whether a proxy might match both s and o.
func (s *Selector) overlaps(o *Selector) bool {
	a, b := s.spec, o.spec
	return overlapText(a.GetCluster(), b.GetCluster()) &&
		overlapText(a.GetLocality().GetRegion(), b.GetLocality().GetRegion()) &&
		overlapText(a.GetLocality().GetZone(), b.GetLocality().GetZone()) &&
		overlapText(a.GetLocality().GetSubZone(), b.GetLocality().GetSubZone()) &&
		overlapStruct(a.GetMetadata(), b.GetMetadata())
}

func overlapText(a, b string) bool { return a == "" || b == "" || a == b }

func overlapStruct(a, b *structpb.Struct) bool {
	for name, x := range a.GetFields() {
		y, both := b.GetFields()[name]
		if !both {
			continue
		}
		xs, xIs := x.GetKind().(*structpb.Value_StructValue)
		ys, yIs := y.GetKind().(*structpb.Value_StructValue)
		if xIs && yIs {
			if !overlapStruct(xs.StructValue, ys.StructValue) {
				return false
			}
		} else if !proto.Equal(x, y) {
			return false
		}
	}
	return true
}
