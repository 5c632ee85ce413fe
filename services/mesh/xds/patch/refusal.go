package patch

import (
	"regexp"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// position matches indices in paths: they differ between the chains of a listener, and a patch
// is reported once.
var position = regexp.MustCompile(`\[\d+\]`)

// refusal says why Envoy would refuse a message; "": it would not. A whole resource must have
// what pieces need not.
func refusal(m proto.Message, whole bool) string {
	for _, d := range validate.CheckEnvoy(m) {
		if d.Severity == problem.Error {
			return position.ReplaceAllString(d.Field, "[]") + ": " + d.Reason
		}
	}
	switch m := m.(type) {
	case *listenerv3.Listener:
		chains := append(slices.Clone(m.GetFilterChains()), m.GetDefaultFilterChain())
		if whole && len(m.GetFilterChains()) == 0 && m.GetDefaultFilterChain() == nil {
			return "Listener.filter_chains: a listener needs a filter chain"
		}
		for _, c := range chains {
			if reason := misplaced(c); reason != "" {
				return "Listener.filter_chains[]." + reason
			}
		}
	case *clusterv3.Cluster:
		if m.GetTransportSocket() != nil && len(m.GetTransportSocketMatches()) > 0 {
			return "Cluster.transport_socket: does not go with transport_socket_matches"
		}
	}
	return ""
}

// refusal says why Envoy would refuse what patches have made of the piece.
func (s *subject) refusal(m proto.Message) string {
	if m == nil {
		return ""
	}
	return refusal(m, !s.partial)
}

// misplaced says which filter of a chain is not where Envoy wants it: one that ends a chain
// must be the last one.
func misplaced(c *listenerv3.FilterChain) string {
	for i, f := range c.GetFilters() {
		ends := f.GetName() == tcpProxy || f.GetName() == connectionManager
		if ends && i < len(c.GetFilters())-1 {
			return "filters[]: " + f.GetName() + " must be the last filter of its chain"
		}
		m := new(hcmv3.HttpConnectionManager)
		if f.GetName() != connectionManager || f.GetTypedConfig().UnmarshalTo(m) != nil {
			continue
		}
		for j, h := range m.GetHttpFilters() {
			if last := j == len(m.GetHttpFilters())-1; h.GetName() == routerFilter && !last {
				return "filters[].typed_config.http_filters[]: " + routerFilter + " must be the last HTTP filter"
			}
		}
		if len(m.GetHttpFilters()) == 0 {
			return "filters[].typed_config.http_filters: there must be one that ends the list, such as " + routerFilter
		}
	}
	return ""
}

// refused reports a patch that is left out because Envoy would refuse its result (EF-9).
func refused(p *index.Patch, reason string) problem.Diagnostic {
	d := p.Problem("patch")
	d.Severity, d.Code, d.Reason = problem.Error, "refused", "Envoy would refuse the result: "+reason
	d.Advice, d.Effect = "correct the patch", "the patch is left out, and all others are applied"
	return d
}
