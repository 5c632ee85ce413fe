package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
)

// RoutePath is a way from a host to where its requests, or connections, go.
type RoutePath struct {
	// Resource has the route, as `meshlog why` names it; Field is the route's path in it, and
	// HostField that of its host. Empty: the resource as a whole.
	Resource, Field, HostField string
	Host                       string   // the first domain, or what a listener matches
	Domains                    []string // of the host
	Match                      string   // what the route matches
	Ends                       string   // where it ends if it has no cluster, such as 404
	To                         []RouteTarget
}

// RouteTarget is a cluster that a route sends to.
type RouteTarget struct {
	Cluster string
	Weight  uint32 // 0: the only one
}

// RouteCluster is a cluster and its endpoints.
type RouteCluster struct {
	Name string
	// Missing: the proxy has no such cluster.
	Missing   bool
	Endpoints []RouteEndpoint
	// From says where the endpoints come from, if they are not in the configuration.
	From string
}

// RouteEndpoint is an endpoint of a cluster.
type RouteEndpoint struct{ Address, Health string }

// Routes are the ways of calls through a proxy.
type Routes struct {
	Paths  []RoutePath // in the order in which the proxy looks at them; not to be changed
	served command.Served
}

// RoutesOf reads the routes of a proxy.
func RoutesOf(s command.Served) (*Routes, error) {
	r := &Routes{served: s}
	if set := s.Sets[ident.RDS]; set != nil {
		for _, x := range set.Resources {
			c := new(routev3.RouteConfiguration)
			if err := proto.Unmarshal(x.Value(), c); err != nil {
				return nil, fmt.Errorf("routes %s: %w", x.Name, err)
			}
			r.add(c, "route/"+x.Name, "")
		}
	}
	if set := s.Sets[ident.LDS]; set != nil {
		for _, x := range set.Resources {
			l := new(listenerv3.Listener)
			if err := proto.Unmarshal(x.Value(), l); err != nil {
				return nil, fmt.Errorf("listener %s: %w", x.Name, err)
			}
			r.listener(l)
		}
	}
	return r, nil
}

// After returns the routes of a proxy that is served s; true if its routes are the same ones.
func (r *Routes) After(s command.Served) (*Routes, bool) {
	if r.served.Sets[ident.RDS] != s.Sets[ident.RDS] || r.served.Sets[ident.LDS] != s.Sets[ident.LDS] {
		return nil, false
	}
	return &Routes{r.Paths, s}, true
}

func (r *Routes) add(c *routev3.RouteConfiguration, resource, prefix string) {
	for i, h := range c.GetVirtualHosts() {
		p := RoutePath{Resource: resource, Domains: h.GetDomains(), Host: h.GetName(), HostField: fmt.Sprintf("%svirtual_hosts[%d]", prefix, i)}
		if len(p.Domains) > 0 {
			p.Host = p.Domains[0]
		}
		for j, route := range h.GetRoutes() {
			to := p
			to.Field, to.Match = fmt.Sprintf("%s.routes[%d]", p.HostField, j), cmp.Or(routeMatch(route.GetMatch()), "everything")
			if to.To = targetsOf(route.GetRoute()); len(to.To) == 0 {
				to.Ends = routeDestination(route)
			}
			r.Paths = append(r.Paths, to)
		}
		if len(h.GetRoutes()) == 0 {
			p.Field, p.Match, p.Ends = p.HostField, "everything", "404"
			r.Paths = append(r.Paths, p)
		}
	}
}

func targetsOf(a *routev3.RouteAction) (to []RouteTarget) {
	for _, w := range a.GetWeightedClusters().GetClusters() {
		to = append(to, RouteTarget{w.GetName(), w.GetWeight().GetValue()})
	}
	if len(to) == 0 && a.GetCluster() != "" {
		to = append(to, RouteTarget{Cluster: a.GetCluster()})
	}
	return to
}

// listener adds the routes that a listener has itself, and where its connections go.
func (r *Routes) listener(l *listenerv3.Listener) {
	chains := l.GetFilterChains()
	if d := l.GetDefaultFilterChain(); d != nil {
		chains = append(slices.Clone(chains), d)
	}
	for _, c := range chains {
		for _, f := range c.GetFilters() {
			m, err := f.GetTypedConfig().UnmarshalNew()
			if err != nil {
				continue // of a type that this build does not know
			}
			switch m := m.(type) {
			case *hcmv3.HttpConnectionManager:
				r.add(m.GetRouteConfig(), "listener/"+l.GetName(), "")
			case *tcpv3.TcpProxy:
				p := RoutePath{Resource: "listener/" + l.GetName(), Host: l.GetName(), Match: strings.TrimSpace("connections " + chainMatch(c.GetFilterChainMatch()))}
				for _, w := range m.GetWeightedClusters().GetClusters() {
					p.To = append(p.To, RouteTarget{w.GetName(), w.GetWeight()})
				}
				if m.GetCluster() != "" {
					p.To = append(p.To, RouteTarget{Cluster: m.GetCluster()})
				}
				r.Paths = append(r.Paths, p)
			}
		}
	}
}

// Cluster returns a cluster of the proxy.
func (r *Routes) Cluster(name string) (RouteCluster, error) {
	v := RouteCluster{Name: name}
	x := r.served.Sets[ident.CDS].Find(name)
	if x == nil {
		v.Missing = true
		return v, nil
	}
	c := new(clusterv3.Cluster)
	if err := proto.Unmarshal(x.Value(), c); err != nil {
		return v, fmt.Errorf("cluster %s: %w", name, err)
	}
	load := c.GetLoadAssignment()
	switch c.GetType() {
	case clusterv3.Cluster_EDS:
		load = new(endpointv3.ClusterLoadAssignment)
		if e := r.served.Sets[ident.EDS].Find(cmp.Or(c.GetEdsClusterConfig().GetServiceName(), name)); e != nil {
			if err := proto.Unmarshal(e.Value(), load); err != nil {
				return v, fmt.Errorf("endpoints of %s: %w", name, err)
			}
		}
	case clusterv3.Cluster_ORIGINAL_DST:
		v.From = "the address that the client called"
	case clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
		v.From = "DNS"
	}
	for _, l := range load.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			health := e.GetHealthStatus()
			if health == corev3.HealthStatus_UNKNOWN {
				health = corev3.HealthStatus_HEALTHY // Envoy uses it unless it finds out otherwise
			}
			v.Endpoints = append(v.Endpoints, RouteEndpoint{address(e.GetEndpoint().GetAddress()), health.String()})
		}
	}
	return v, nil
}

// Matches reports whether a path is about a host that contains a text.
func (p *RoutePath) Matches(text string) bool {
	contains := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	return contains(p.Host) || slices.ContainsFunc(p.Domains, contains) || slices.ContainsFunc(p.To, func(t RouteTarget) bool { return contains(t.Cluster) })
}
