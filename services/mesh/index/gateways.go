package index

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const gatewayKind = "Gateway"

// gatewayIndex holds the Gateways by their selectors.
type gatewayIndex struct {
	bySelector table.Groups[string, *Gateway] // the oldest first
	selectors  []*gatewaySelector             // sorted by text
}

// gatewaySelector selects routers for Gateways (GW-1).
type gatewaySelector struct {
	labels map[string]string
	text   string
}

// MemberKey returns the key of the object.
func (g *Gateway) MemberKey() ident.Key { return g.Key }

func (g *Gateway) same(o *Gateway) bool {
	return g.Key == o.Key && g.Created.Equal(o.Created) && sameMessage(g.Spec, o.Spec)
}

func newGatewayIndex() gatewayIndex {
	return gatewayIndex{bySelector: table.NewGroups[string, *Gateway](hashString)}
}

// newGatewaySelector reads a selector; without labels it selects all routers.
func newGatewaySelector(labels map[string]string) *gatewaySelector {
	if len(labels) == 0 {
		return &gatewaySelector{nil, everyProxy}
	}
	parts := make([]string, 0, len(labels))
	for k, v := range labels {
		parts = append(parts, fmt.Sprintf("%s=%q", k, v))
	}
	slices.Sort(parts)
	return &gatewaySelector{labels, strings.Join(parts, " ")}
}

// gatewayEdit makes one gatewayIndex from another.
type gatewayEdit struct {
	*transition
	from       gatewayIndex
	bySelector *table.GroupsEdit[string, *Gateway]
}

func (x gatewayIndex) edit(t *transition) *gatewayEdit {
	return &gatewayEdit{transition: t, from: x, bySelector: x.bySelector.Edit(func(a, b *Gateway) int {
		return world.Wins(t.priority, a.Key, a.Created, b.Key, b.Created)
	})}
}

// change applies a change of a Gateway; either may be nil.
func (e *gatewayEdit) change(was, is *world.Object) {
	for _, o := range []*world.Object{was, is} {
		if o == nil {
			continue
		}
		m, ok := o.Message.(*networking.Gateway)
		if !ok {
			continue
		}
		text := newGatewaySelector(m.GetSelector()).text
		if o == was {
			e.bySelector.Drop(text, o.Key)
		} else {
			e.bySelector.Put(text, &Gateway{o.Key, o.Created, m})
		}
	}
}

func (e *gatewayEdit) done() gatewayIndex {
	if len(e.bySelector.Moved) == 0 {
		return e.from
	}
	x := gatewayIndex{bySelector: e.bySelector.Done(), selectors: e.from.selectors}
	for text := range e.bySelector.Moved {
		was, is := e.from.bySelector.Get(text), x.bySelector.Get(text)
		if slices.EqualFunc(was, is, (*Gateway).same) {
			continue
		}
		e.changed(Input{Kind: InputGateways, A: text})
		if (len(was) == 0) != (len(is) == 0) {
			e.reclassify(true)
			x.selectors = withSelector(x.selectors, text, is)
		}
	}
	return x
}

// withSelector returns list with or without the selector of that text.
func withSelector(list []*gatewaySelector, text string, members []*Gateway) []*gatewaySelector {
	list = slices.DeleteFunc(slices.Clone(list), func(s *gatewaySelector) bool { return s.text == text })
	if len(members) > 0 {
		list = append(list, newGatewaySelector(members[0].Spec.GetSelector()))
	}
	slices.SortFunc(list, func(a, b *gatewaySelector) int { return strings.Compare(a.text, b.text) })
	return list
}
