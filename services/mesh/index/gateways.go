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

// gatewayIndex holds the Gateways by the texts of their selectors (GW-1), the
// oldest first.
type gatewayIndex struct {
	bySelector table.Groups[string, *Gateway]
}

// MemberKey returns the key of the object.
func (g *Gateway) MemberKey() ident.Key { return g.Key }

// Runs reports whether workloads with these labels are the Gateway's. One
// without selector names no workloads.
func (g *Gateway) Runs(labels map[string]string) bool {
	return len(g.Spec.GetSelector()) > 0 && matchLabels(g.Spec.GetSelector(), labels)
}

func (g *Gateway) same(o *Gateway) bool {
	return g.Key == o.Key && g.Created.Equal(o.Created) && sameMessage(g.Spec, o.Spec)
}

// selector returns the text of the selector; without labels it selects all
// routers.
func (g *Gateway) selector() string { return selectorText(g.Spec.GetSelector()) }

// selectorText returns the text of a selector by labels; equal selectors have
// equal texts, and one without labels selects everything.
func selectorText(labels map[string]string) string {
	if len(labels) == 0 {
		return everyProxy
	}
	parts := make([]string, 0, len(labels))
	for k, v := range labels {
		parts = append(parts, fmt.Sprintf("%s=%q", k, v))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// next returns the index after changes of Gateways.
func (x gatewayIndex) next(t *transition, changes []change) gatewayIndex {
	edit := x.bySelector.Edit(func(a, b *Gateway) int {
		return world.Wins(t.priority, a.Key, a.Created, b.Key, b.Created)
	})
	for _, c := range changes {
		for o, after := range c.versions() {
			if m, ok := o.Message.(*networking.Gateway); ok {
				g := &Gateway{o.Key, o.Created, m}
				edit.Keep(g.selector(), g, after)
			}
		}
	}
	next := gatewayIndex{edit.Done()}
	for text := range edit.Moved {
		was, is := x.bySelector.Get(text), next.bySelector.Get(text)
		if !slices.EqualFunc(was, is, (*Gateway).same) {
			t.changed(Input{Kind: InputGateways, A: text})
			t.reclassify((len(was) == 0) != (len(is) == 0))
		}
	}
	return next
}
