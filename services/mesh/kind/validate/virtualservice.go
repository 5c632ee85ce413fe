package validate

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

const meshGateway = "mesh" // stands for all sidecars (VS-2)

func VirtualService(m proto.Message) []problem.Problem {
	vs := m.(*networking.VirtualService)
	c := checker{}
	delegate := len(vs.GetHosts()) == 0 // VS-4
	if delegate {
		c.delegate(vs)
	}
	c.virtualHosts(vs)
	c.gateways(root.field("gateways"), vs.GetGateways())
	if len(vs.GetHttp()) == 0 && len(vs.GetTls()) == 0 && len(vs.GetTcp()) == 0 {
		c.at(root, "write http, tls or tcp", "has no routes")
	}
	for i, r := range vs.GetHttp() {
		c.httpRoute(root.field("http").item(i), r, delegate)
	}
	c.reachable(vs.GetHttp())
	for i, r := range vs.GetTls() {
		c.tlsRoute(root.field("tls").item(i), r, vs.GetHosts())
	}
	for i, r := range vs.GetTcp() {
		at := root.field("tcp").item(i)
		for j, m := range r.GetMatch() {
			c.layer4(at.field("match").item(j), m)
		}
		c.routeDestinations(at.field("route"), r.GetRoute())
	}
	c.exportTo(root.field("exportTo"), vs.GetExportTo())
	c.noEffect("VirtualService", m)
	return c.result()
}

// delegate checks a VirtualService without hosts.
func (c *checker) delegate(vs *networking.VirtualService) {
	if len(vs.GetGateways()) > 0 {
		c.at(root.field("hosts"), "add the hosts; only a delegate, which has no gateways, goes without", "is empty")
	}
	if len(vs.GetTls()) > 0 || len(vs.GetTcp()) > 0 {
		c.at(root.field("hosts"), "add the hosts; only a delegate, which has nothing but http, goes without", "is empty")
	}
}

func (c *checker) virtualHosts(vs *networking.VirtualService) {
	mesh := len(vs.GetGateways()) == 0 || slices.Contains(vs.GetGateways(), meshGateway)
	for i, h := range vs.GetHosts() {
		at := root.field("hosts").item(i)
		switch {
		case slices.Contains(vs.GetHosts()[:i], h):
			c.at(at, "leave one of them", "%q is there twice", h)
		case h == "*" && mesh:
			c.at(at, "name the hosts, or the gateways that it is for", "stands for every host, which is for gateways only")
		case !isIP(h):
			c.host(at, h, true)
		}
	}
}

// gateways checks names of Gateways: name, or namespace/name.
func (c *checker) gateways(at *fieldPath, names []string) {
	for i, g := range names {
		parts := strings.Split(g, "/")
		ok := len(parts) <= 2
		if len(parts) == 2 {
			ok = label.MatchString(parts[0]) || parts[0] == "."
		}
		if !ok || !isHost(parts[len(parts)-1], false) {
			c.at(at.item(i), "write name, namespace/name or "+meshGateway, "%q is no name of a Gateway", g)
		}
	}
}

// reachable warns of routes behind one that takes all requests (VSM-1).
func (c *checker) reachable(routes []*networking.HTTPRoute) {
	for i, r := range routes {
		if len(r.GetMatch()) == 0 && i+1 < len(routes) {
			c.warn(root.field("http").item(i+1), "move it up, or remove it", "is never reached: http[%d] takes all requests", i)
			return
		}
	}
}

func (c *checker) tlsRoute(at *fieldPath, r *networking.TLSRoute, hosts []string) {
	if len(r.GetMatch()) == 0 {
		c.at(at.field("match"), "say which connections, by sniHosts", "is empty")
	}
	for i, m := range r.GetMatch() {
		field := at.field("match").item(i)
		if len(m.GetSniHosts()) == 0 {
			c.at(field.field("sniHosts"), "name the hosts", "is empty")
		}
		for j, h := range m.GetSniHosts() {
			c.host(field.field("sniHosts").item(j), h, true)
			if !slices.ContainsFunc(hosts, func(of string) bool { return within(h, of) }) {
				c.at(field.field("sniHosts").item(j), "add it to spec.hosts", "%q is none of spec.hosts", h)
			}
		}
		c.layer4(field, m)
	}
	c.routeDestinations(at.field("route"), r.GetRoute())
}

// within says whether all that host stands for is stood for by of.
func within(host, of string) bool {
	return host == of || isWildcard(of) && strings.HasSuffix(host, of[1:])
}

// layer4Matcher is a match of connections.
type layer4Matcher interface {
	matcher
	GetDestinationSubnets() []string
}

func (c *checker) layer4(at *fieldPath, m layer4Matcher) {
	for i, s := range m.GetDestinationSubnets() {
		c.subnet(at.field("destinationSubnets").item(i), s)
	}
	c.source(at, m)
}

func (c *checker) routeDestinations(at *fieldPath, ds []*networking.RouteDestination) {
	if len(ds) == 0 {
		c.at(at, "name where connections go", "is empty")
	}
	weights := make([]int32, len(ds))
	for i, d := range ds {
		c.destination(at.item(i).field("destination"), d.GetDestination())
		weights[i] = d.GetWeight()
	}
	c.weighted(at, weights)
}
