package listener

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/cluster"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// meshProtocols are what clients offer by ALPN in mutual TLS of the mesh.
var meshProtocols = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}

// passedOn returns the chains of a port for connections that come from other networks: one
// for each port and subset of each service that its servers cover. A connection without mutual
// TLS of the mesh has no chain, so it is closed (GW-11).
func passedOn(r *index.Reader, p *gateway.Port, scope index.Scope) []*listenerv3.FilterChain {
	var all []*listenerv3.FilterChain
	add := func(rule *networking.DestinationRule, host, subset string, port uint32) {
		name := piece.ServerName(host, subset, port)
		all = append(all, &listenerv3.FilterChain{
			FilterChainMatch: &listenerv3.FilterChainMatch{
				// Envoy compares server names in lower case.
				TransportProtocol: "tls", ServerNames: []string{strings.ToLower(name)}, ApplicationProtocols: meshProtocols,
			},
			Filters: []*listenerv3.Filter{forwardAs(name, ofNetwork(traffic.Find(r.Mesh(), rule, subset, port)))},
		})
	}
	taken := map[string]bool{}
	for _, s := range r.Services(scope) {
		if !cluster.PassedOn(s) || !covered(p, s) {
			continue
		}
		var rule *networking.DestinationRule
		if id, ok := r.Rule(scope, s.Namespace, s.Hostname); ok {
			rule, _ = r.DestinationRule(id)
		}
		for _, port := range s.Ports {
			add(rule, s.Hostname, "", port.Number)
			for _, subset := range rule.GetSubsets() {
				// Names that differ only in case are one server name.
				if name := strings.ToLower(piece.ServerName(s.Hostname, subset.GetName(), port.Number)); !taken[name] {
					taken[name] = true
					add(rule, s.Hostname, subset.GetName(), port.Number)
				}
			}
		}
	}
	return all
}

// ofNetwork returns what counts of a policy between networks: how long connections last. A
// gateway is called by its own address, and the caller's is that of another gateway.
func ofNetwork(p traffic.Policy) traffic.Policy { return traffic.Policy{Pool: p.Pool} }

// covered reports whether a server of the port passes connections to a service on.
func covered(p *gateway.Port, s *index.Service) bool {
	return slices.ContainsFunc(p.Servers, func(server gateway.Server) bool {
		return server.AutoPassthrough && slices.ContainsFunc(server.Hosts, func(h gateway.Host) bool {
			return (h.Namespace == "" || h.Namespace == s.Namespace) && (h.Name == s.Hostname || gateway.Covers(h.Name, s.Hostname))
		})
	})
}
