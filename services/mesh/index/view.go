package index

import (
	"slices"
	"strings"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
)

// EndpointView is from where a proxy looks at endpoints, as far as not all
// proxies see the same. Whatever differs nowhere in the world is not in it.
type EndpointView struct {
	// Cluster is its Kubernetes cluster, where there are several (NET-6).
	Cluster string `json:",omitempty"`
	// Network is its network, where networks have gateways; that of all
	// networks without one is "~" (NET-2). Empty: it is not known, and all is
	// called directly.
	Network string `json:",omitempty"`
	// Requested is the networks that it wants to see, between commas; empty:
	// all (NET-5).
	Requested string `json:",omitempty"`
	// Family is that of the gateways that it can call, where there are others.
	Family Family `json:",omitempty"`
}

// Family of IP addresses.
type Family uint8

// Families. The zero value is any of them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// elsewhere is every network without gateways: those in it see all the same.
const elsewhere = "~"

// spread is by what proxies that see a service see its endpoints differently.
// It is immutable.
type spread struct {
	// networks are those of the endpoints, and of the clusters that have the
	// service: endpoints come and go more often. Sorted, none empty.
	networks []string
	local    bool // to each cluster (NET-6)
}

func (s *spread) equal(o *spread) bool {
	return s == o || s != nil && o != nil && s.local == o.local && slices.Equal(s.networks, o.networks)
}

// spreadOf is nil where all proxies see the same.
func (x *networkIndex) spreadOf(claims []*claim, endpoints Endpoints, local bool) *spread {
	s := &spread{local: local}
	add := func(network string) {
		if i, have := slices.BinarySearch(s.networks, network); network != "" && !have {
			s.networks = slices.Insert(s.networks, i, network)
		}
	}
	for _, c := range claims {
		if c.registry != nil {
			add(x.ofShard(c.service.Key.Shard()))
		}
	}
	for _, list := range endpoints {
		for i := range list {
			add(list[i].Network)
		}
	}
	if len(s.networks) == 0 && !local {
		return nil
	}
	return s
}

// ServiceView is what of the endpoints of one service is seen otherwise than
// they are. The zero value: nothing.
type ServiceView struct {
	// Cluster is the only one whose endpoints are seen.
	Cluster string
	// Hidden are networks whose endpoints are not seen; Through are those that
	// are entered by gateways, of Family. Names are sorted, a line each.
	Hidden, Through string
	Family          Family
}

// Views are those that a class has of services.
type Views struct {
	of       EndpointView
	spreads  *table.Table[ServiceID, *spread]
	gateways *NetworkGateways
}

// Views returns those of a class.
func (r *Reader) Views(of EndpointView) Views {
	if of == (EndpointView{}) {
		return Views{}
	}
	r.note(Input{Kind: InputSpread})
	r.note(Input{Kind: InputNetworks})
	return Views{of, &r.pc.endpoints.spreads, r.pc.networks.gateways}
}

// NetworkGateways returns those of all networks.
func (r *Reader) NetworkGateways() *NetworkGateways {
	r.note(Input{Kind: InputNetworks})
	return r.pc.networks.gateways
}

// Of is the view of a service.
func (v Views) Of(id ServiceID) ServiceView {
	var view ServiceView
	if v.spreads == nil {
		return view
	}
	s := v.spreads.Get(id)
	if s == nil {
		return view
	}
	if s.local {
		view.Cluster = v.of.Cluster
	}
	var hidden, through []string
	for _, network := range s.networks {
		switch {
		case v.of.Requested != "" && !slices.Contains(strings.Split(v.of.Requested, ","), network):
			hidden = append(hidden, network)
		case v.of.Network != "" && v.of.Network != network && v.gateways.has(network):
			through = append(through, network)
			view.Family = v.of.Family
		}
	}
	view.Hidden, view.Through = strings.Join(hidden, "\n"), strings.Join(through, "\n")
	return view
}

// viewOf is the view of a proxy.
func (pc *PushContext) viewOf(p *proxy.Proxy) EndpointView {
	v := EndpointView{Cluster: pc.clusterOf(p), Requested: requestedNetworks(p)}
	if len(pc.networks.gateways.sorted) == 0 {
		return v
	}
	if v.Network = pc.networkOf(p); v.Network == "" {
		return v
	}
	if !pc.networks.gateways.has(v.Network) {
		v.Network = elsewhere
	}
	v.Family = pc.familyOf(p)
	return v
}

// clusterOf is the cluster of a proxy if it is one of several in the world.
func (pc *PushContext) clusterOf(p *proxy.Proxy) string {
	if pc.services.clusters.Len() < 2 || pc.services.clusters.Get(p.ClusterID) == 0 {
		return ""
	}
	return p.ClusterID
}

// familyOf is the only family that a proxy can call, where gateways are of
// another one too.
func (pc *PushContext) familyOf(p *proxy.Proxy) Family {
	ips := p.Addresses()
	if len(ips) == 0 {
		return 0
	}
	family := FamilyOf(ips[0])
	for _, ip := range ips {
		if FamilyOf(ip) != family {
			return 0
		}
	}
	for _, g := range pc.networks.gateways.sorted {
		if FamilyOf(g.Address) != family {
			return family
		}
	}
	return 0
}

// requestedNetworks reads REQUESTED_NETWORK_VIEW, a text with commas or a list.
func requestedNetworks(p *proxy.Proxy) string {
	v := p.Metadata.GetFields()["REQUESTED_NETWORK_VIEW"]
	if v == nil {
		return ""
	}
	names := strings.Split(v.GetStringValue(), ",")
	for _, e := range v.GetListValue().GetValues() {
		names = append(names, e.GetStringValue())
	}
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" })
	return strings.Join(names, ",")
}

// endpointViews are those for which a world must be fit to be served.
func (pc *PushContext) endpointViews() []EndpointView {
	var all []EndpointView
	if pc.services.clusters.Len() > 1 {
		for _, cluster := range pc.services.clusters.Names() {
			all = append(all, EndpointView{Cluster: cluster})
		}
	}
	networks := pc.networks.gateways.networks()
	if len(networks) > 0 {
		networks = append(networks, elsewhere)
	}
	for _, network := range networks {
		all = append(all, EndpointView{Network: network})
	}
	return all
}
