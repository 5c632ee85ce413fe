package simulate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// Proxy holds the decoded resources of one proxy.
type Proxy struct {
	clusters  map[string]*clusterv3.Cluster
	endpoints map[string]*endpointv3.ClusterLoadAssignment
	listeners []*listenerv3.Listener // sorted by name
	routes    map[string]*routev3.RouteConfiguration
}

// NewProxy decodes the resources of a class of proxies.
func NewProxy(sets [ident.ResourceTypes]*xds.Set) (*Proxy, error) {
	p := &Proxy{
		clusters:  map[string]*clusterv3.Cluster{},
		endpoints: map[string]*endpointv3.ClusterLoadAssignment{},
		routes:    map[string]*routev3.RouteConfiguration{},
	}
	for t, set := range sets {
		if set == nil {
			continue
		}
		for _, r := range set.Resources {
			if err := p.add(ident.ResourceType(t), r); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *Proxy) add(t ident.ResourceType, r *xds.Resource) error {
	m, err := (&anypb.Any{TypeUrl: t.URL(), Value: r.Value()}).UnmarshalNew()
	if err != nil {
		return fmt.Errorf("%s %q: %w", t.Message(), r.Name, err)
	}
	switch m := m.(type) {
	case *clusterv3.Cluster:
		p.clusters[r.Name] = m
	case *endpointv3.ClusterLoadAssignment:
		p.endpoints[r.Name] = m
	case *listenerv3.Listener:
		p.listeners = append(p.listeners, m)
	case *routev3.RouteConfiguration:
		p.routes[r.Name] = m
	}
	return nil
}

// Call is a request, or a connection, that a proxy forwards.
type Call struct {
	// Address is the destination of the caller's connection; the zero Addr is an
	// address that no listener has.
	Address netip.Addr
	Port    uint32
	// TCP: the proxy cannot see requests in the connection. The fields below are
	// empty then.
	TCP    bool
	Host   string // :authority, with its port if the caller sends one
	Method string
	// Path with query.
	Path    string
	Headers map[string]string // by lower-case name
}

// Outcome is the way of a call. Names are empty if the call did not get that far.
type Outcome struct {
	Listener, FilterChain, RouteConfiguration, VirtualHost, Route string

	// To are the clusters that the call may go to, in proportion to Weight; empty:
	// the proxy answers the call itself.
	To []Destination
	// Status is the proxy's own answer; 0: it closes the connection, or the call
	// goes to one of To.
	Status   uint32
	Location string // of a redirect
	Body     string
	// Notes lists what else happens to the call: rewrites, timeouts, retries; and
	// the features that this package does not know.
	Notes []string
}

// Destination is a cluster that a call may go to.
type Destination struct {
	Cluster string
	Weight  uint32
	// Missing: the cluster does not exist, and Envoy answers 503.
	Missing bool
	// Endpoints are "address:port", sorted; unhealthy ones with their status.
	Endpoints []string
}

// Call follows a call.
func (p *Proxy) Call(c Call) Outcome {
	var o Outcome
	l := p.listener(c)
	if l == nil {
		o.note("no listener for port %d", c.Port)
		return o
	}
	o.Listener = l.GetName()
	chain := matchChain(l, c)
	if chain == nil {
		o.note("no filter chain matches")
		return o
	}
	o.FilterChain = chain.GetName()
	p.filters(chain, c, &o)
	return o
}

func (o *Outcome) note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

// listener returns the listener that takes a connection: the one on its address,
// then the one on its port and every address, then the one that takes everything.
func (p *Proxy) listener(c Call) *listenerv3.Listener {
	var wildcard, catchAll *listenerv3.Listener
	for _, l := range p.listeners {
		if l.GetAddress() == nil { // of a gRPC client, which asks for it by name
			if l.GetName() == c.Host {
				return l
			}
			continue
		}
		a := l.GetAddress().GetSocketAddress()
		if l.GetUseOriginalDst().GetValue() {
			catchAll = l
			continue
		}
		if a.GetPortValue() != c.Port {
			continue
		}
		ip, err := netip.ParseAddr(a.GetAddress())
		switch {
		case err != nil:
		case c.Address.IsValid() && ip == c.Address:
			return l
		case ip.IsUnspecified():
			wildcard = l
		}
	}
	return cmp.Or(wildcard, catchAll)
}

// destination describes a cluster, with its endpoints.
func (p *Proxy) destination(cluster string, weight uint32) Destination {
	d := Destination{Cluster: cluster, Weight: weight}
	c := p.clusters[cluster]
	if c == nil {
		d.Missing = true
		return d
	}
	load := c.GetLoadAssignment()
	switch c.GetType() {
	case clusterv3.Cluster_EDS:
		load = p.endpoints[cmp.Or(c.GetEdsClusterConfig().GetServiceName(), cluster)]
	case clusterv3.Cluster_ORIGINAL_DST:
		d.Endpoints = []string{"original destination"}
		return d
	}
	for _, loc := range load.GetEndpoints() {
		for _, e := range loc.GetLbEndpoints() {
			d.Endpoints = append(d.Endpoints, describe(e))
		}
	}
	slices.Sort(d.Endpoints)
	return d
}

func describe(e *endpointv3.LbEndpoint) string {
	a := e.GetEndpoint().GetAddress()
	text := a.GetPipe().GetPath()
	if s := a.GetSocketAddress(); s != nil {
		host := s.GetAddress()
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		text = fmt.Sprintf("%s:%d", host, s.GetPortValue())
	}
	if h := e.GetHealthStatus(); h != 0 {
		text += " " + h.String()
	}
	return text
}
