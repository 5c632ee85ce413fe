package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate/rbac"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

// Proxy holds the decoded resources of one proxy.
type Proxy struct {
	clusters  map[string]*clusterv3.Cluster
	endpoints map[string]*endpointv3.ClusterLoadAssignment
	listeners []*listenerv3.Listener // sorted by name
	routes    map[string]*routev3.RouteConfiguration
	slots     map[string]*anypb.Any // filters that come by ECDS
}

// NewProxy decodes the resources of a class of proxies.
func NewProxy(sets [ident.ResourceTypes]*xds.Set) (*Proxy, error) { return Decoder{}.Proxy(sets) }

// Decoder decodes resources and keeps them, for many proxies that differ little.
type Decoder map[*xds.Resource]proto.Message

// Proxy is NewProxy.
func (d Decoder) Proxy(sets [ident.ResourceTypes]*xds.Set) (*Proxy, error) {
	p := &Proxy{
		clusters:  map[string]*clusterv3.Cluster{},
		endpoints: map[string]*endpointv3.ClusterLoadAssignment{},
		routes:    map[string]*routev3.RouteConfiguration{},
		slots:     map[string]*anypb.Any{},
	}
	for t, set := range sets {
		if set == nil {
			continue
		}
		for _, r := range set.Resources {
			if err := p.add(d, ident.ResourceType(t), r); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *Proxy) add(d Decoder, t ident.ResourceType, r *xds.Resource) error {
	m := d[r]
	if m == nil {
		var err error
		if m, err = (&anypb.Any{TypeUrl: t.URL(), Value: r.Value()}).UnmarshalNew(); err != nil {
			return fmt.Errorf("%s %q: %w", t.Message(), r.Name, err)
		}
		d[r] = m
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
	case *corev3.TypedExtensionConfig:
		p.slots[r.Name] = m.GetTypedConfig()
	}
	return nil
}

// Call is a request, or a connection, that a proxy gets.
type Call struct {
	// Inbound: the call is for the workload of the proxy. Otherwise the proxy forwards it.
	Inbound bool
	// Address is the destination of the caller's connection; the zero Addr is an
	// address that no listener has.
	Address netip.Addr
	Port    uint32
	// From is the address of the caller's end of the connection. With the zero Addr, a
	// rule that looks at it makes the outcome unknown.
	From netip.Addr

	// TLS: the connection begins with a handshake. The fields below are of it.
	TLS        bool
	ServerName string
	// ALPN are the protocols that the client offers. If it has a certificate and offers
	// none, they are those that sidecars of the mesh offer.
	ALPN []string
	// Certificate is the client's; nil: it has none. Untrusted: it is not by a CA that the
	// proxy accepts, is not for clients, or has ended.
	Certificate *rbac.Certificate
	Untrusted   bool

	// TCP: the proxy cannot see requests in the connection. The fields below are
	// empty then.
	TCP    bool
	Host   string // :authority, with its port if the caller sends one
	Method string
	// Path with query.
	Path    string
	Headers map[string][]string // lines by lower-case name
	Token   *Token              // whose claims the call names; nil: there is none
	// Now is when the call is made: tokens in headers, the query and cookies are verified
	// by it and the keys of their issuers. With the zero Time they make the outcome unknown.
	Now time.Time

	// offers: a proxy sends the request, and offers by ALPN what the metadata of its cluster
	// says. unknown are the lower-case names of headers that a proxy writes.
	offers  bool
	unknown []string
}

// Outcome is the way of a call. Names are empty if the call did not get that far.
type Outcome struct {
	Listener           string `json:"listener,omitempty"`
	FilterChain        string `json:"filterChain,omitempty"`
	RouteConfiguration string `json:"routeConfiguration,omitempty"`
	VirtualHost        string `json:"virtualHost,omitempty"`
	Route              string `json:"route,omitempty"`

	// Decisions are what policies say about the call, in the order of their filters.
	Decisions []Decision `json:"decisions,omitempty"`
	// Refused: the last decision ends the call.
	Refused bool `json:"refused,omitempty"`
	// Unknown says why the simulation cannot tell whether policies allow the call; empty:
	// it can. To and Status are empty then.
	Unknown string `json:"unknown,omitempty"`

	// To are the clusters that the call may go to, in proportion to Weight; empty:
	// the proxy answers the call itself.
	To []Destination `json:"to,omitempty"`
	// Status is the proxy's own answer; 0: it closes the connection, or the call
	// goes to one of To.
	Status   uint32 `json:"status,omitempty"`
	Closed   bool   `json:"closed,omitempty"`   // the proxy closes the connection
	Location string `json:"location,omitempty"` // of a redirect
	Body     string `json:"body,omitempty"`
	// Notes lists what else happens to the call: rewrites, timeouts, retries; and
	// the features that this package does not know.
	Notes []string `json:"notes,omitempty"`

	sent   *Call  // what the proxy forwards to one of To
	unsaid string // the part of sent that is not known
}

// Passes reports whether each cluster that the call may go to has a healthy endpoint. A
// call that the proxy answers itself does not pass.
func (o Outcome) Passes() bool {
	return !o.Refused && !o.Closed && o.Unknown == "" && len(o.To) > 0 &&
		!slices.ContainsFunc(o.To, func(d Destination) bool { return !d.Healthy() })
}

// Healthy reports whether the cluster has a healthy endpoint.
func (d Destination) Healthy() bool {
	return !d.Missing && slices.ContainsFunc(d.Endpoints, func(e string) bool {
		e, _, _ = strings.Cut(e, priority)
		e, _, _ = strings.Cut(e, share)
		_, status, _ := strings.Cut(e, " ")
		return status == "" || status == "HEALTHY" || status == "destination"
	})
}

// Destination is a cluster that a call may go to.
type Destination struct {
	Cluster string `json:"cluster"`
	Weight  uint32 `json:"weight"`
	// Missing: the cluster does not exist, and Envoy answers 503.
	Missing bool `json:"missing,omitempty"`
	// Endpoints are "address:port", by priority and sorted; unhealthy ones with their status,
	// and those that are not called first with their priority.
	Endpoints []string `json:"endpoints,omitempty"`
}

// Call follows a call.
func (p *Proxy) Call(c Call) Outcome {
	var o Outcome
	if c.TLS && c.Certificate != nil && c.ALPN == nil {
		c.ALPN = MeshALPN(c.TCP)
	}
	l := p.listener(c)
	if l == nil {
		o.note("no listener for port %d", c.Port)
		return o
	}
	o.Listener = l.GetName()
	chain, err := matchChain(l, c)
	if err != nil {
		o.Unknown = err.Error()
		return o
	}
	if chain == nil {
		o.close("no filter chain matches")
		o.logged(l.GetAccessLog())
		return o
	}
	o.FilterChain = chain.GetName()
	decrypted, refused, err := handshake(chain, &c)
	if err != nil {
		o.Unknown = err.Error()
		return o
	}
	if refused != "" {
		o.close("%s", refused)
		return o
	}
	p.filters(chain, c, decrypted, &o)
	return o
}

// close ends the call: the proxy closes its connection.
func (o *Outcome) close(format string, args ...any) {
	o.Closed = true
	o.note(format, args...)
}

func (o *Outcome) note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

// listener returns the listener that takes a connection: the one on its address,
// then the one on its port and every address, then the one that takes everything. A router
// is called on the ports of its Gateways, as the Services in front of it have them. A call
// by name also finds the one listener of its port, whatever address it is on.
func (p *Proxy) listener(c Call) *listenerv3.Listener {
	var wildcard, catchAll *listenerv3.Listener
	var bound []*listenerv3.Listener // to single addresses
	for _, l := range p.listeners {
		if c.Inbound && l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
			continue
		}
		if l.GetAddress() == nil { // of a gRPC client, which asks for it by name
			if l.GetName() == c.Host {
				return l
			}
			continue
		}
		a := l.GetAddress().GetSocketAddress()
		if l.GetUseOriginalDst().GetValue() || c.Inbound && inspects(l, originalDst, c) {
			catchAll = l
			continue
		}
		if !serves(l, a.GetPortValue(), c.Port) {
			continue
		}
		ip, err := netip.ParseAddr(a.GetAddress())
		switch {
		case err != nil:
		case c.Address.IsValid() && ip == c.Address:
			return l
		case ip.IsUnspecified():
			wildcard = l
		default:
			bound = append(bound, l)
		}
	}
	if wildcard == nil && catchAll == nil && len(bound) == 1 && !c.Address.IsValid() {
		return bound[0] // who calls the port calls that address
	}
	return cmp.Or(wildcard, catchAll)
}

// serves reports whether a listener on a port serves calls to another one: a Service in
// front of the router may have sent them here.
func serves(l *listenerv3.Listener, port, called uint32) bool {
	named := l.GetMetadata().GetFilterMetadata()[piece.GatewayPorts].GetFields()["ports"].GetListValue().GetValues()
	return port == called || slices.ContainsFunc(named, func(v *structpb.Value) bool { return v.GetStringValue() == strconv.FormatUint(uint64(called), 10) })
}

// destination describes a cluster, with its endpoints.
func (p *Proxy) destination(cluster string, weight uint32) Destination {
	d := Destination{Cluster: cluster, Weight: weight}
	c := p.clusters[cluster]
	if c == nil {
		d.Missing = true
		return d
	}
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		d.Endpoints = []string{"original destination"}
		return d
	}
	if c.GetClusterType().GetName() == "envoy.clusters.dynamic_forward_proxy" {
		d.Endpoints = []string{"host that the call names"}
		return d
	}
	var weights uint64
	shares := c.GetCommonLbConfig().GetLocalityWeightedLbConfig() != nil
	for _, loc := range p.load(c).GetEndpoints() {
		weights += uint64(loc.GetLoadBalancingWeight().GetValue())
	}
	byPriority := map[uint32][]string{}
	for _, loc := range p.load(c).GetEndpoints() {
		for _, e := range loc.GetLbEndpoints() {
			text := describe(e)
			if n := loc.GetPriority(); n > 0 {
				text += fmt.Sprintf("%s%d", priority, n)
			}
			if shares {
				text += fmt.Sprintf("%s%d%%", share, uint64(loc.GetLoadBalancingWeight().GetValue())*100/weights)
			}
			byPriority[loc.GetPriority()] = append(byPriority[loc.GetPriority()], text)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(byPriority)) {
		d.Endpoints = append(d.Endpoints, slices.Sorted(slices.Values(byPriority[n]))...)
	}
	return d
}

// What follows an endpoint that is called only if those of lower numbers fail, and one of a
// locality that has a share.
const (
	priority = " priority "
	share    = " locality "
)

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
