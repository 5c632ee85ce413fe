package index

import (
	"fmt"
	"maps"
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

// has reports whether a server has a mode of TLS.
func (g *Gateway) has(mode networking.ServerTLSSettings_TLSmode) bool {
	return slices.ContainsFunc(g.Spec.GetServers(), func(s *networking.Server) bool {
		return s.GetTls() != nil && s.GetTls().GetMode() == mode
	})
}

// has reports whether a server of the Gateways of some selectors has a mode of TLS.
func (x *gatewayIndex) has(mode networking.ServerTLSSettings_TLSmode, selectors SelectorSet) bool {
	return slices.ContainsFunc(selectors.Selectors(), func(text string) bool {
		return slices.ContainsFunc(x.bySelector.Get(text), func(g *Gateway) bool { return g.has(mode) })
	})
}

// sameClasses reports whether routers that a selector matches are in the same classes with
// the Gateways of o: classes tell apart what mutual TLS of the mesh needs, and have the
// ports of servers that a Service in front translates. The gate checks routers in the
// namespaces of Gateways.
func (x *gatewayIndex) sameClasses(o *gatewayIndex, selector string) bool {
	for _, mode := range []networking.ServerTLSSettings_TLSmode{networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_ISTIO_MUTUAL} {
		if x.has(mode, SelectorSet(selector)) != o.has(mode, SelectorSet(selector)) {
			return false
		}
	}
	if !maps.Equal(x.homes(selector), o.homes(selector)) {
		return false
	}
	if !maps.Equal(x.numbers(SelectorSet(selector)), o.numbers(SelectorSet(selector))) {
		return false
	}
	return (len(x.bySelector.Get(selector)) == 0) == (len(o.bySelector.Get(selector)) == 0)
}

// homes returns the namespaces of the Gateways of a selector.
func (x *gatewayIndex) homes(selector string) map[string]bool {
	all := make(map[string]bool)
	for _, g := range x.bySelector.Get(selector) {
		all[g.Key.Namespace] = true
	}
	return all
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
			t.reclassify(!x.sameClasses(&next, text))
		}
	}
	return next
}
