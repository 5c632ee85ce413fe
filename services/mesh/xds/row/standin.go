package row

import (
	"fmt"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
)

// StandIn is what clients are served in place of a rejected piece or resource.
type StandIn struct {
	// Value is an encoded message of the resource's type: the whole resource, or
	// the pieces that take the place of one; nil: nothing.
	Value []byte
	// Closed: it refuses requests or connections, and is no earlier content.
	Closed bool
}

// Whole returns what stands in for a whole rejected resource of type t: the last
// good one, unless that lacks a security setting of the rejected one; else a
// resource that refuses; else nothing.
func Whole(t ident.ResourceType, rejected, good []byte) StandIn {
	bad, err := decode(t, rejected)
	if good != nil && err == nil {
		if last, err := decode(t, good); err == nil && securityOf(bad).in(securityOf(last)) {
			return StandIn{Value: good}
		}
	}
	if err != nil {
		return StandIn{}
	}
	if closed := closedWhole(bad); closed != nil {
		return StandIn{marshal(closed), true}
	}
	return StandIn{}
}

// forPiece returns what stands in for a rejected piece: what served the same
// requests or connections in the last good resource, unless that lacks a security
// setting of the rejected piece; else a piece that refuses them.
func forPiece(bad, good proto.Message) StandIn {
	switch m := bad.(type) {
	case *routev3.RouteConfiguration:
		last, _ := good.(*routev3.RouteConfiguration)
		hosts, closed := hostsInstead(m.GetVirtualHosts()[0], last)
		return StandIn{marshal(&routev3.RouteConfiguration{VirtualHosts: hosts}), closed}
	case *listenerv3.Listener:
		last, _ := good.(*listenerv3.Listener)
		if c := m.GetDefaultFilterChain(); c != nil {
			c, closed := chainInstead(c, last.GetDefaultFilterChain())
			return StandIn{marshal(&listenerv3.Listener{DefaultFilterChain: c}), closed}
		}
		is := m.GetFilterChains()[0]
		var was *listenerv3.FilterChain
		for _, c := range last.GetFilterChains() {
			if was == nil && proto.Equal(c.GetFilterChainMatch(), is.GetFilterChainMatch()) {
				was = c
			}
		}
		c, closed := chainInstead(is, was)
		return StandIn{marshal(&listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{c}}), closed}
	}
	return StandIn{}
}

// hostsInstead returns virtual hosts with exactly the domains of bad, so that no
// request falls through to another virtual host: each domain has the routes that
// it had in good, or answers 503. It finds them by domain and not by name,
// because virtual hosts may have been split or merged since.
func hostsInstead(bad *routev3.VirtualHost, good *routev3.RouteConfiguration) (hosts []*routev3.VirtualHost, closed bool) {
	need := securityOf(bad)
	var refused []string
	from := map[*routev3.VirtualHost]*routev3.VirtualHost{}
	for _, domain := range bad.GetDomains() {
		was := hostOf(good, domain)
		if was == nil || !need.in(securityOf(was)) {
			refused = append(refused, domain)
			continue
		}
		h := from[was]
		if h == nil {
			h = proto.Clone(was).(*routev3.VirtualHost)
			h.Domains, from[was] = nil, h
			hosts = append(hosts, h)
		}
		h.Domains = append(h.Domains, domain)
	}
	closed = len(hosts) == 0
	if len(refused) > 0 {
		hosts = append(hosts, closedHost("", refused))
	}
	for i, h := range hosts { // no two may have one name
		if h.Name = bad.GetName(); i > 0 {
			h.Name = fmt.Sprintf("%s held back %d", bad.GetName(), i+1)
		}
	}
	return hosts, closed
}

func hostOf(good *routev3.RouteConfiguration, domain string) *routev3.VirtualHost {
	for _, h := range good.GetVirtualHosts() {
		for _, d := range h.GetDomains() {
			if strings.EqualFold(d, domain) {
				return h
			}
		}
	}
	return nil
}

func chainInstead(bad, good *listenerv3.FilterChain) (*listenerv3.FilterChain, bool) {
	if good != nil && securityOf(bad).in(securityOf(good)) {
		return good, false
	}
	return closedChain(bad.GetName(), bad.GetFilterChainMatch()), true
}

func decode(t ident.ResourceType, value []byte) (proto.Message, error) {
	m, err := (&anypb.Any{TypeUrl: t.URL(), Value: value}).UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Message(), err)
	}
	return m, nil
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a message that was decoded cannot fail to marshal: %v", err))
	}
	return b
}
