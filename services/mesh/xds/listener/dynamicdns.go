package listener

import (
	"cmp"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	sniv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// addNamed puts a port without requests of a service whose endpoints calls name on the
// listener of its number: TLS clients name one by the server name. Other connections name
// none, which validation reports.
func (o *outbound) addNamed(u *user) {
	switch {
	case u.port.Protocol.IsTLS():
		o.addUnaddressed(u)
	case u.port.Protocol == index.Sniffed && !o.taken(u.port.Number):
		o.entry(o.shared, u.port.Number, u.service).addRequests(u, route.ForPort(u.port.Number))
	}
}

// resolveServerName returns the network filter that resolves the server name that a TLS
// client asks for, before its connection is forwarded to a port there.
func resolveServerName(p index.Port) *listenerv3.Filter {
	return networkFilter("envoy.filters.network.sni_dynamic_forward_proxy", &sniv3.FilterConfig{
		DnsCacheConfig: piece.DynamicDNS(),
		PortSpecifier:  &sniv3.FilterConfig_PortValue{PortValue: cmp.Or(p.Target, p.Number)},
	})
}

// byServerName returns the filters for connections that were chosen by their server name. A
// destination whose endpoints calls name gets those that are still encrypted, and all of a
// route.
func (t *connector) byServerName(at string, all []*networking.RouteDestination, decrypted bool) []*listenerv3.Filter {
	if t.resolves = !decrypted && len(route.Weighted(all)) == 1; !t.resolves {
		return []*listenerv3.Filter{t.filter(at, all)}
	}
	filters := []*listenerv3.Filter{t.filter(at, all)}
	t.resolves = false
	d := route.Weighted(all)[0].GetDestination()
	s := t.Service(d.GetHost())
	if s == nil || s.Resolution != index.DynamicDNS {
		return filters
	}
	p, _ := s.Port(route.Port(s, d, t.Port))
	return slices.Insert(filters, 0, resolveServerName(p))
}
