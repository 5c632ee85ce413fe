package patch

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// routes patches a RouteConfiguration, or a piece of one. It returns false if the piece has
// nothing left. Virtual hosts are added to the piece with the head.
func (w *work) routes(c *routev3.RouteConfiguration, name string) bool {
	head := c.GetName() != ""
	had := len(c.GetVirtualHosts())
	for _, p := range w.of(networking.EnvoyFilter_ROUTE_CONFIGURATION) {
		if !merges(p) || !w.routesMatch(name, p) {
			continue
		}
		if v := p.Value.(*routev3.RouteConfiguration); !head {
			if p.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST && len(v.GetVirtualHosts()) > 0 {
				c.VirtualHosts = nil
				w.done(p)
			}
			continue
		}
		w.done(p)
		merge(c, p)
		if c.GetName() != name {
			w.note(p, problem.Warning, "patch", "patch.value.name", "a RouteConfiguration keeps its name: listeners ask for it by that", "remove the name", "the name is ignored")
			c.Name = name
		}
	}
	c.VirtualHosts = slices.DeleteFunc(c.GetVirtualHosts(), func(h *routev3.VirtualHost) bool { return !w.virtualHost(h, name) })
	for _, p := range w.of(networking.EnvoyFilter_VIRTUAL_HOST) {
		if head && p.Operation == networking.EnvoyFilter_Patch_ADD && w.routesMatch(name, p) {
			w.done(p)
			c.VirtualHosts = append(c.VirtualHosts, value[*routev3.VirtualHost](p))
		}
	}
	return head || len(c.GetVirtualHosts()) > 0 || had == 0
}

// virtualHost patches a virtual host. It returns false if that is removed.
func (w *work) virtualHost(h *routev3.VirtualHost, routes string) bool {
	for _, p := range w.of(networking.EnvoyFilter_VIRTUAL_HOST) {
		if p.Operation == networking.EnvoyFilter_Patch_ADD || !w.routesMatch(routes, p) || !hostMatch(h, p) {
			continue
		}
		w.done(p)
		switch {
		case p.Operation == networking.EnvoyFilter_Patch_REMOVE:
			return false
		case p.Operation == networking.EnvoyFilter_Patch_REPLACE:
			m := h.ProtoReflect()
			m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool { m.Clear(fd); return true })
			merge(h, p)
		case merges(p):
			merge(h, p)
		}
	}
	w.hostRoutes(h, routes)
	return true
}

// hostRoutes patches the routes of a virtual host: those that are there, then it inserts.
func (w *work) hostRoutes(h *routev3.VirtualHost, routes string) {
	var patches []*index.Patch
	for _, p := range w.of(networking.EnvoyFilter_HTTP_ROUTE) {
		if w.routesMatch(routes, p) && hostMatch(h, p) {
			patches = append(patches, p)
		}
	}
	h.Routes = slices.DeleteFunc(h.GetRoutes(), func(r *routev3.Route) bool {
		for _, p := range patches {
			removes := p.Operation == networking.EnvoyFilter_Patch_REMOVE
			if !removes && !merges(p) || !routeMatch(r, p) {
				continue
			}
			w.done(p)
			if removes {
				return true
			}
			merge(r, p)
		}
		return false
	})
	for _, p := range patches {
		if merges(p) || p.Operation == networking.EnvoyFilter_Patch_REMOVE {
			continue
		}
		named := p.Match.GetRouteConfiguration().GetVhost().GetRoute() != nil
		at := place(p.Operation, len(h.GetRoutes()), named, func() int {
			return slices.IndexFunc(h.GetRoutes(), func(r *routev3.Route) bool { return routeMatch(r, p) })
		})
		if at < 0 {
			continue
		}
		w.done(p)
		h.Routes = slices.Insert(h.Routes, at, value[*routev3.Route](p))
	}
}

// place returns where an operation inserts into a list of n elements; -1: nowhere, because
// the element that it names is not there. Without a name it is the beginning or the end.
// INSERT_FIRST puts a route that names one first, if that is there.
func place(o networking.EnvoyFilter_Patch_Operation, n int, named bool, find func() int) int {
	at := -1
	if named {
		at = find()
	}
	switch o {
	case networking.EnvoyFilter_Patch_ADD:
		return n
	case networking.EnvoyFilter_Patch_INSERT_FIRST:
		if named && at < 0 {
			return -1
		}
		return 0
	case networking.EnvoyFilter_Patch_INSERT_BEFORE:
		if !named {
			return 0
		}
		return at
	case networking.EnvoyFilter_Patch_INSERT_AFTER:
		switch {
		case !named:
			return n
		case at >= 0:
			return at + 1
		}
	}
	return -1
}

// routesMatch reports whether a RouteConfiguration of that name matches (EF-6).
func (w *work) routesMatch(name string, p *index.Patch) bool {
	m := p.Match.GetRouteConfiguration()
	if m == nil {
		return true
	}
	port, portName, gateway := w.routesOf(name)
	if m.GetPortNumber() != 0 && m.GetPortNumber() != port || m.GetName() != "" && m.GetName() != name {
		return false
	}
	if w.context() != networking.EnvoyFilter_GATEWAY {
		return true
	}
	return (m.GetPortName() == "" || m.GetPortName() == portName) && (m.GetGateway() == "" || m.GetGateway() == gateway)
}

func hostMatch(h *routev3.VirtualHost, p *index.Patch) bool {
	m := p.Match.GetRouteConfiguration().GetVhost()
	return (m.GetName() == "" || m.GetName() == h.GetName()) && (m.GetDomainName() == "" || slices.Contains(h.GetDomains(), m.GetDomainName()))
}

func routeMatch(r *routev3.Route, p *index.Patch) bool {
	m := p.Match.GetRouteConfiguration().GetVhost().GetRoute()
	if m.GetName() != "" && m.GetName() != r.GetName() {
		return false
	}
	switch m.GetAction() {
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE:
		return r.GetRoute() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT:
		return r.GetRedirect() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE:
		return r.GetDirectResponse() != nil
	}
	return true
}
