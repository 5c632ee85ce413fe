package index

import (
	"slices"
	"strings"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
)

// EndpointView is a proxy's place, as far as it changes which endpoints the
// proxy sees anywhere in the world.
type EndpointView struct {
	// Cluster is its Kubernetes cluster, if there are several (NET-6).
	Cluster string `json:",omitempty"`
	// Network is its network, if networks have gateways; "~" for any network
	// without (NET-2). Empty: unknown, and everything is called directly.
	Network string `json:",omitempty"`
	// Requested are the networks that it wants to see, separated by commas, of
	// those in which there are endpoints; "~" for none of them; empty: all (NET-5).
	Requested string `json:",omitempty"`
	// Family of the gateways that it can call, if there are others.
	Family Family `json:",omitempty"`
	// Place is where it is among the endpoints.
	Place Place `json:",omitzero"`
}

// Family of IP addresses.
type Family uint8

// Families. The zero value is any of them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// elsewhere stands for every network without gateways: their proxies see the
// same. In Requested it stands for every network without endpoints.
const elsewhere = "~"

// spread describes how the endpoints that proxies see of a service depend on the
// proxies' places. Immutable.
type spread struct {
	// networks of the endpoints and of the service's clusters: endpoints come and
	// go more often. Sorted, none empty.
	networks []string
	local    bool // to each cluster (NET-6)
}

func (s *spread) equal(o *spread) bool {
	return s == o || s != nil && o != nil && s.local == o.local && slices.Equal(s.networks, o.networks)
}

// spreadOf returns nil if all proxies see the same endpoints.
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

// ServiceView describes how the endpoints of one service differ for a place. The
// zero value: not at all.
type ServiceView struct {
	// Cluster is the only one whose endpoints are seen.
	Cluster string
	// Hidden are networks whose endpoints are not seen; Through are networks that
	// are entered by gateways, of Family. Sorted, one per line.
	Hidden, Through string
	Family          Family
	// Place is where the proxy is, if that makes a difference for the service.
	Place Place
}

// Reaches reports whether a proxy calls an endpoint directly: it sees it, and no gateway is
// between them.
func (v ServiceView) Reaches(e *Endpoint) bool {
	in := func(lines string) bool {
		return lines != "" && e.Network != "" && slices.Contains(strings.Split(lines, "\n"), e.Network)
	}
	return e.Address != "" && (v.Cluster == "" || !e.Kubernetes || e.ClusterID == v.Cluster) && !in(v.Hidden) && !in(v.Through)
}

// Views are the ServiceViews of a class.
type Views struct {
	of       EndpointView
	spreads  table.Table[ServiceID, *spread]
	gateways *NetworkGateways
}

// Views returns the ServiceViews of a class.
func (r *Reader) Views(of EndpointView) Views {
	of.Place = Place{} // PlaceFor tells which services depend on it
	if of == (EndpointView{}) {
		return Views{}
	}
	r.note(Input{Kind: InputSpread})
	return Views{of, r.pc.endpoints.spreads, r.NetworkGateways()}
}

// NetworkGateways returns the gateways of all networks.
func (r *Reader) NetworkGateways() *NetworkGateways {
	r.note(Input{Kind: InputNetworks})
	return &r.pc.networks.gateways
}

// Of returns the view of a service.
func (v Views) Of(id ServiceID) ServiceView {
	var view ServiceView
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

// viewOf returns the view of a proxy.
func (pc *PushContext) viewOf(p *proxy.Proxy) EndpointView {
	v := EndpointView{Cluster: pc.clusterOf(p), Requested: pc.requestedNetworks(p), Place: pc.placeOfProxy(p)}
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

// clusterOf returns the cluster of a proxy if the world has several and it is
// one of them.
func (pc *PushContext) clusterOf(p *proxy.Proxy) string {
	if pc.services.clusters.Len() < 2 || pc.services.clusters.Get(p.ClusterID) == 0 {
		return ""
	}
	return p.ClusterID
}

// familyOf returns the only family that a proxy can call, if some gateways are
// of another one.
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
// Only networks in which there are endpoints make a difference, so any other text
// makes no class of its own.
func (pc *PushContext) requestedNetworks(p *proxy.Proxy) string {
	v := p.Metadata.GetFields()["REQUESTED_NETWORK_VIEW"]
	known := pc.endpoints.networks
	if v == nil || known.Len() == 0 {
		return ""
	}
	names := strings.Split(v.GetStringValue(), ",")
	for _, e := range v.GetListValue().GetValues() {
		names = append(names, e.GetStringValue())
	}
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	names = slices.DeleteFunc(sortUnique(names), func(s string) bool { return s == "" })
	if len(names) == 0 {
		return ""
	}
	names = slices.DeleteFunc(names, func(s string) bool { return known.Get(s) == 0 })
	switch len(names) {
	case 0:
		return elsewhere
	case known.Len():
		return ""
	}
	return strings.Join(names, ",")
}

// endpointViews returns the views that a version must be generated for before
// it is published.
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
