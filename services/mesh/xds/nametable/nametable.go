// Package nametable makes the table of names that agents answer by DNS (NDS-1), one resource
// for each service in Istio's format: a change of one service is one resource, and only
// endpoints of headless services are in it.
//
// It is pure.
package nametable

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Registries, as Istio names them.
const (
	kubernetes = "Kubernetes"
	external   = "External"
)

// Parts returns a part for each service that has addresses. The host "*" has none: an
// agent would answer every name of the world with them.
func Parts(r *index.Reader, class index.NDSClass) []piece.Part {
	if !class.Names {
		return nil
	}
	var parts []piece.Part
	views := r.Views(class.View)
	for _, s := range listened(r, class.Scope) {
		own := ""
		if len(s.Clusters) > 1 && s.IsIn(class.View.Cluster) {
			own = class.View.Cluster
		}
		switch {
		case s.Hostname == "*":
		case s.Headless:
			parts = append(parts, headless{s.ServiceID, views.Of(s.ServiceID), own})
		case len(virtual(s.In(own))) > 0:
			parts = append(parts, addressed{s.ServiceID, own})
		}
	}
	return parts
}

// listened returns the services for which the sidecar has listeners, each once.
func listened(r *index.Reader, scope index.Scope) []*index.Service {
	listeners := r.Egress(scope)
	if len(listeners) == 1 {
		return listeners[0].Services
	}
	var all []*index.Service
	seen := map[index.ServiceID]bool{}
	for _, e := range listeners {
		for _, s := range e.Services {
			if !seen[s.ServiceID] {
				seen[s.ServiceID] = true
				all = append(all, s)
			}
		}
	}
	return all
}

// addressed is a service with virtual IPs.
type addressed struct {
	service index.ServiceID
	cluster string // of the agent, if the service is in several
}

// Make implements piece.Part.
func (p addressed) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(p.service)
	if s == nil {
		return nil, nil
	}
	return table(s, map[string]*ndsv1.NameTable_NameInfo{s.Hostname: info(s, "", virtual(s.In(p.cluster)))})
}

// virtual returns the virtual IPs of a service. A range of addresses answers no name.
func virtual(s *index.Service) []string {
	var ips []string
	for _, a := range s.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil && !ip.IsUnspecified() {
			ips = append(ips, ip.String())
		}
	}
	return ips
}

// headless is a service whose name has the addresses of its endpoints. An endpoint with a
// hostname has a name below it.
type headless struct {
	service index.ServiceID
	view    index.ServiceView
	cluster string // of the agent, if the service is in several
}

// Make implements piece.Part.
func (p headless) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(p.service)
	if s == nil {
		return nil, nil
	}
	all := map[string]struct{}{}
	type place struct{ hostname, cluster string }
	named := map[place][]string{}
	for _, list := range r.Endpoints(p.service) {
		for i := range list {
			e := &list[i]
			ip, err := netip.ParseAddr(e.Address)
			if err != nil || e.Health != index.Healthy || !p.view.Reaches(e) {
				continue
			}
			all[ip.String()] = struct{}{}
			if at := (place{e.Hostname, e.ClusterID}); e.Hostname != "" && !slices.Contains(named[at], ip.String()) {
				named[at] = append(named[at], ip.String())
			}
		}
	}
	hosts := map[string]*ndsv1.NameTable_NameInfo{s.Hostname: info(s, "", slices.Sorted(maps.Keys(all)))}
	for at, ips := range named {
		// The name means one endpoint: that of the agent's cluster, else of the first.
		better := func(o place) bool {
			return o.hostname == at.hostname && o != at && (o.cluster == p.cluster || at.cluster != p.cluster && o.cluster < at.cluster)
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(named)), better) {
			continue
		}
		slices.Sort(ips)
		hosts[at.hostname+"."+s.Hostname] = info(s, at.hostname, ips)
	}
	if len(all) == 0 {
		return nil, nil // agents forward the name, and the mesh's own DNS says what it knows
	}
	return table(s, hosts)
}

func info(s *index.Service, hostname string, ips []string) *ndsv1.NameTable_NameInfo {
	if !s.Kubernetes {
		return &ndsv1.NameTable_NameInfo{Ips: ips, Registry: external}
	}
	return &ndsv1.NameTable_NameInfo{
		Ips: ips, Registry: kubernetes, Namespace: s.Namespace, Shortname: strings.TrimPrefix(hostname+"."+s.Key.Name, "."),
	}
}

func table(s *index.Service, hosts map[string]*ndsv1.NameTable_NameInfo) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: s.Hostname, Message: &ndsv1.NameTable{Table: hosts}}}, nil
}
