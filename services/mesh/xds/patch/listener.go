package patch

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// listener patches a Listener, or a piece of one. It returns false if the listener is removed,
// or nothing of the piece is left. The head has all but most of the filter chains.
func (w *work) listener(l *listenerv3.Listener) bool {
	head := l.GetName() != ""
	port := listenerPort(l, w.name)
	had := len(l.GetFilterChains())
	for _, p := range w.of(networking.EnvoyFilter_LISTENER) {
		if !w.listenerMatch(port, p) {
			continue
		}
		if p.Operation == networking.EnvoyFilter_Patch_REMOVE {
			w.done(p)
			return false
		}
		w.mergeListener(l, p, head)
	}
	if head {
		for _, p := range w.of(networking.EnvoyFilter_LISTENER_FILTER) {
			if w.listenerMatch(port, p) {
				l.ListenerFilters = patchList(w, p, l.GetListenerFilters(), p.Match.GetListener().GetListenerFilter(), 0)
			}
		}
	}
	l.FilterChains = slices.DeleteFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool { return !w.chain(c, port) })
	if c := l.GetDefaultFilterChain(); c != nil && !w.chain(c, port) {
		l.DefaultFilterChain = nil
	}
	for _, p := range w.of(networking.EnvoyFilter_FILTER_CHAIN) {
		if head && p.Operation == networking.EnvoyFilter_Patch_ADD && w.listenerMatch(port, p) {
			w.done(p)
			l.FilterChains = append(l.FilterChains, value[*listenerv3.FilterChain](p))
		}
	}
	return head || had == 0 || len(l.GetFilterChains()) > 0 || l.GetDefaultFilterChain() != nil
}

func (w *work) mergeListener(l *listenerv3.Listener, p *index.Patch, head bool) {
	if !head {
		if p.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST && len(p.Value.(*listenerv3.Listener).GetFilterChains()) > 0 {
			l.FilterChains = nil
			w.done(p)
		}
		return
	}
	w.done(p)
	merge(l, p)
	if l.GetName() != w.name {
		w.note(p, problem.Warning, "patch", "patch.value.name", "a listener keeps its name", "remove the name, or add a listener", "the name is ignored")
		l.Name = w.name
	}
}

// chain patches a filter chain. It returns false if that is removed.
func (w *work) chain(c *listenerv3.FilterChain, port uint32) bool {
	for _, p := range w.of(networking.EnvoyFilter_FILTER_CHAIN) {
		removes := p.Operation == networking.EnvoyFilter_Patch_REMOVE
		if !removes && !merges(p) || !w.listenerMatch(port, p) || !w.chainMatch(c, p) {
			continue
		}
		w.done(p)
		if removes {
			return false
		}
		merge(c, p)
	}
	if w.changesFilters() {
		for i, f := range c.GetFilters() { // chains share filters
			c.Filters[i] = cloned(f)
		}
	}
	for _, p := range w.of(networking.EnvoyFilter_NETWORK_FILTER) {
		if w.listenerMatch(port, p) && w.chainMatch(c, p) {
			c.Filters = patchList(w, p, c.GetFilters(), p.Match.GetListener().GetFilterChain().GetFilter().GetName(), w.deciding(c.GetFilters()))
		}
	}
	for _, f := range c.GetFilters() {
		if f.GetName() == connectionManager {
			w.manager(c, f, port)
		}
	}
	return true
}

func (w *work) changesFilters() bool {
	return slices.ContainsFunc(w.patches, func(p *index.Patch) bool {
		return p.ApplyTo != networking.EnvoyFilter_LISTENER && p.ApplyTo != networking.EnvoyFilter_LISTENER_FILTER
	})
}

// listenerMatch reports whether a listener matches (EF-5). The ports of the listeners of all
// redirected connections are those of their chains, except for what is about the listener.
func (w *work) listenerMatch(port uint32, p *index.Patch) bool {
	m := p.Match.GetListener()
	if m.GetName() != "" && m.GetName() != w.name {
		return false
	}
	if m.GetPortNumber() == 0 || w.virtual() && p.ApplyTo != networking.EnvoyFilter_LISTENER {
		return true
	}
	return m.GetPortNumber() == port
}

func (w *work) virtual() bool { return w.name == virtualInbound || w.name == virtualOutbound }

// chainMatch reports whether a chain of a listener that matches does too (EF-5).
func (w *work) chainMatch(c *listenerv3.FilterChain, p *index.Patch) bool {
	m, have := p.Match.GetListener(), c.GetFilterChainMatch()
	if w.virtual() && m.GetPortNumber() != 0 && have.GetDestinationPort().GetValue() != m.GetPortNumber() {
		return false
	}
	f := m.GetFilterChain()
	switch {
	case f.GetName() != "" && f.GetName() != c.GetName(),
		f.GetSni() != "" && !slices.Contains(have.GetServerNames(), f.GetSni()),
		f.GetTransportProtocol() != "" && f.GetTransportProtocol() != have.GetTransportProtocol(),
		f.GetDestinationPort() != 0 && f.GetDestinationPort() != have.GetDestinationPort().GetValue():
		return false
	}
	if f.GetApplicationProtocols() != "" {
		for name := range strings.SplitSeq(f.GetApplicationProtocols(), ",") {
			if !slices.Contains(have.GetApplicationProtocols(), name) {
				return false
			}
		}
	}
	return true
}
