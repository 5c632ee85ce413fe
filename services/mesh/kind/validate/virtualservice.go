package validate

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

const meshGateway = "mesh" // all sidecars (VS-2)

// VirtualService checks a VirtualService.
func VirtualService(m proto.Message) []problem.Diagnostic {
	vs := m.(*networking.VirtualService)
	c := checker{kind: "VirtualService"}
	delegate := len(vs.GetHosts()) == 0 // VS-4
	c.errorIf(delegate && len(vs.GetGateways()) > 0, root.field("hosts"), "add the hosts; only a delegate, which has no gateways, goes without", isEmpty)
	c.errorIf(delegate && len(vs.GetTls())+len(vs.GetTcp()) > 0, root.field("hosts"), "add the hosts; only a delegate, which has nothing but http, goes without", isEmpty)
	c.virtualHosts(vs)
	c.gateways(root.field("gateways"), vs.GetGateways())
	c.errorIf(len(vs.GetHttp())+len(vs.GetTls())+len(vs.GetTcp()) == 0, root, "write http, tls or tcp", "has no routes")
	for i, r := range vs.GetHttp() {
		c.httpRoute(root.field("http").item(i), r, delegate)
	}
	c.reachable(vs.GetHttp())
	for i, r := range vs.GetTls() {
		c.tlsRoute(root.field("tls").item(i), r, vs)
	}
	c.noEffect(len(vs.GetTls()) > 0 && ofMesh(vs), root.field("tls"))
	for i, r := range vs.GetTcp() {
		at := root.field("tcp").item(i)
		for j, m := range r.GetMatch() {
			c.layer4(at.field("match").item(j), m)
			c.sourceSubnet(at.field("match").item(j).field("sourceSubnet"), m, vs)
		}
		c.routeDestinations(at.field("route"), r.GetRoute())
	}
	c.exportTo(root.field("exportTo"), vs.GetExportTo())
	return c.result()
}

// sourceSubnet checks the source of a TCP route (VST-4), which only routers look at.
func (c *checker) sourceSubnet(at *fieldPath, m *networking.L4MatchAttributes, vs *networking.VirtualService) {
	of := m.GetGateways()
	if len(of) == 0 {
		of = vs.GetGateways()
	}
	if m.GetSourceSubnet() != "" && slices.ContainsFunc(of, func(name string) bool { return name != meshGateway }) {
		c.subnet(at, m.GetSourceSubnet())
	}
	c.noEffect(m.GetSourceSubnet() != "" && (len(of) == 0 || slices.Contains(of, meshGateway)), at)
}

func (c *checker) virtualHosts(vs *networking.VirtualService) {
	mesh := ofMesh(vs)
	for i, h := range vs.GetHosts() {
		at := root.field("hosts").item(i)
		switch {
		case slices.Contains(vs.GetHosts()[:i], h):
			c.errorf(at, leaveOne, isTwice, h)
		case !mesh && isGeneratedSNI(h) && hasSNI(vs):
		case h == "*" && mesh:
			c.errorf(at, "name the hosts, or the gateways that it is for", "matches every host, which is for gateways only")
		default:
			c.hostOrIP(at, h, true)
			c.overlappingHost(at, h, vs.GetHosts()[:i], mesh)
		}
	}
}

// overlappingHost checks that a host and those before it have no name in common.
func (c *checker) overlappingHost(at *fieldPath, h string, before []string, mesh bool) {
	for _, o := range before {
		if mesh && o == "*" { // an error of its own
			continue
		}
		c.errorIf(within(h, o) || within(o, h), at, "leave the wildcard, or the hosts that it matches", "overlaps with %q", o)
	}
}

// gateways checks names of Gateways: name, or namespace/name.
func (c *checker) gateways(at *fieldPath, names []string) {
	for i, g := range names {
		ns, name, ok := strings.Cut(g, "/")
		if !ok {
			ns, name = ".", g
		}
		c.errorIf(ns != "." && !isNamespace(ns) || !isHost(name, false), at.item(i), "write name, namespace/name or "+meshGateway, "%q is not a Gateway name", g)
	}
}

// reachable warns of a route behind one that takes all requests (VSM-1).
func (c *checker) reachable(routes []*networking.HTTPRoute) {
	for i, r := range routes {
		if len(r.GetMatch()) == 0 && i+1 < len(routes) {
			c.warnf(root.field("http").item(i+1), "move it up, or remove it", "is never reached: http[%d] takes all requests", i)
			return
		}
	}
}

// ofMesh reports whether sidecars follow a VirtualService (VS-2).
func ofMesh(vs *networking.VirtualService) bool {
	return len(vs.GetGateways()) == 0 || slices.Contains(vs.GetGateways(), meshGateway)
}

func hasSNI(vs *networking.VirtualService) bool {
	return slices.ContainsFunc(vs.GetTls(), func(r *networking.TLSRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networking.TLSMatchAttributes) bool { return len(m.GetSniHosts()) > 0 })
	})
}

// isGeneratedSNI reports whether s is a server name that Istio's proxies send
// through gateways between networks: outbound_.PORT_.SUBSET_.HOST.
func isGeneratedSNI(s string) bool {
	parts := strings.Split(s, "_.")
	if len(parts) != 4 {
		return false
	}
	port, err := strconv.ParseUint(parts[1], 10, 16)
	return parts[0] == "outbound" && err == nil && port > 0 && (parts[2] == "" || isHostLabel(parts[2])) && isHost(parts[3], true)
}

func (c *checker) tlsRoute(at *fieldPath, r *networking.TLSRoute, vs *networking.VirtualService) {
	c.errorIf(len(r.GetMatch()) == 0, at.field("match"), "select connections by sniHosts", isEmpty)
	for i, m := range r.GetMatch() {
		field := at.field("match").item(i)
		c.errorIf(len(m.GetSniHosts()) == 0, field.field("sniHosts"), "name the hosts", isEmpty)
		for j, h := range m.GetSniHosts() {
			c.sniHost(field.field("sniHosts").item(j), h, vs)
		}
		c.layer4(field, m)
	}
	c.routeDestinations(at.field("route"), r.GetRoute())
}

func (c *checker) sniHost(at *fieldPath, h string, vs *networking.VirtualService) {
	switch {
	case !isHost(h, true) && isIP(h):
		c.warnf(at, "write the name that clients ask for", "%q is an IP address, which few clients send as a server name", h)
		return
	case !ofMesh(vs) && isGeneratedSNI(h):
	default:
		c.host(at, h, true)
	}
	c.errorIf(!slices.ContainsFunc(vs.GetHosts(), func(of string) bool { return within(h, of) }), at, "add it to spec.hosts", "%q is none of spec.hosts", h)
}

// within reports whether of matches every name that host matches.
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
	c.errorIf(len(ds) == 0, at, "name where connections go", isEmpty)
	for i, d := range ds {
		c.destination(at.item(i).field("destination"), d.GetDestination())
	}
	weighted(c, at, ds)
}
