package consul

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/watcher/registry"
)

// entry is an instance as /v1/health/service/NAME has it.
type entry struct {
	Node struct {
		Node, Address, Datacenter string
		TaggedAddresses           map[string]string
		Meta                      map[string]string
		Locality                  *locality
	}
	Service struct {
		Kind, ID, Address string
		Tags              []string
		Meta              map[string]string
		Port              uint32
		Ports             []port
		TaggedAddresses   map[string]struct {
			Address string
			Port    uint32
		}
		Weights     struct{ Passing, Warning uint32 }
		Locality    *locality
		ModifyIndex uint64
	}
	Checks []check
}

type port struct {
	Name string
	Port uint32
}

type locality struct{ Region, Zone string }

// check is a health check of an instance, or of its node if it has no ServiceName.
type check struct {
	Node, CheckID, Status, ServiceName string
}

// The states of checks.
const (
	passing  = "passing"
	warning  = "warning"
	critical = "critical"
)

// id is the identity of an instance (CON-13). Names of nodes have no slash.
func (e *entry) id() string { return e.Node.Node + "/" + e.Service.ID }

// service converts the instances of a service. Those of a kind, which are proxies and
// gateways, are left out (CON-17).
func (s *Settings) service(name, ui string, entries []entry) *registry.Service {
	v := &registry.Service{
		Namespace: s.Namespace, Name: name, Host: name + ".service.consul",
		Origin: ui + "/ui/" + url.PathEscape(s.Datacenter) + "/services/" + url.PathEscape(name),
	}
	if s.DatacenterHosts {
		v.Host = name + ".service." + s.Datacenter + ".consul"
	}
	version := uint64(0)
	for i := range entries {
		e := &entries[i]
		if e.Service.Kind != "" {
			continue
		}
		if x := e.Service.Meta["external"]; x != "" && x != "false" {
			v.External = true
		}
		version = max(version, e.Service.ModifyIndex)
		v.Instances = append(v.Instances, s.instance(e))
	}
	v.Version = strconv.FormatUint(version, 10)
	v.Instances = distinct(v.Instances)
	return v
}

func (s *Settings) instance(e *entry) registry.Instance {
	in := registry.Instance{
		ID: e.id(), Address: cmp.Or(e.Service.Address, e.Node.Address), Port: e.Service.Port,
		Metadata: labels(e.Service.Meta, e.Service.Tags), Locality: e.locality(), Node: e.Node.Node,
	}
	if t, ok := e.Service.TaggedAddresses[s.TaggedAddress]; ok && t.Address != "" {
		in.Address, in.Port = t.Address, cmp.Or(t.Port, in.Port)
	} else if a := e.Node.TaggedAddresses[s.TaggedAddress]; a != "" && e.Service.Address == "" {
		in.Address = a
	}
	if len(e.Service.Ports) > 0 { // one of them is Port too (CON-14)
		in.Port = 0
		for _, p := range e.Service.Ports {
			in.Named = append(in.Named, registry.NamedPort{Name: p.Name, Number: p.Port})
		}
	}
	in.Health, in.Weight = s.health(e)
	return in
}

// health is that of the worst check of the instance and of its node (CON-15).
func (s *Settings) health(e *entry) (registryv1.Health, uint32) {
	worst, maintenance := passing, false
	for _, c := range e.Checks {
		switch {
		case c.Status == critical || c.Status != passing && c.Status != warning:
			worst = critical
			maintenance = maintenance || c.CheckID == "_node_maintenance" || strings.HasPrefix(c.CheckID, "_service_maintenance:")
		case c.Status == warning && worst == passing:
			worst = warning
		}
	}
	weight := e.Service.Weights.Passing
	if worst == warning {
		weight = e.Service.Weights.Warning
	}
	switch {
	case maintenance:
		return registryv1.Health_HEALTH_DRAINING, weight
	case worst == critical, weight == 0, worst == warning && s.DropWarning:
		return registryv1.Health_HEALTH_UNHEALTHY, weight
	}
	return registryv1.Health_HEALTH_HEALTHY, weight
}

// locality is the service's, else the node's, else the datacenter with the zone that the
// node's metadata name (CON-12).
func (e *entry) locality() *registryv1.Locality {
	for _, l := range []*locality{e.Service.Locality, e.Node.Locality} {
		if l != nil && l.Region != "" {
			return &registryv1.Locality{Region: l.Region, Zone: l.Zone}
		}
	}
	return &registryv1.Locality{Region: e.Node.Datacenter, Zone: e.Node.Meta["zone"]}
}

// labels returns the metadata and the tags as labels (CON-16). Metadata win, then the
// first tag.
func labels(meta map[string]string, tags []string) map[string]string {
	all := make(map[string]string, len(meta)+len(tags))
	for k, v := range meta {
		all[k] = v
	}
	for _, t := range tags {
		k, v := "consul-tag/"+t, "true"
		if i := strings.IndexAny(t, "=|"); i > 0 {
			k, v = t[:i], t[i+1:]
		}
		if _, ok := all[k]; !ok {
			all[k] = v
		}
	}
	return all
}

// distinct leaves out instances whose address another one has: the healthy one counts,
// then the lower identity (CON-13).
func distinct(all []registry.Instance) []registry.Instance {
	slices.SortFunc(all, func(a, b registry.Instance) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(firstPort(&a), firstPort(&b)), cmp.Compare(rank(a.Health), rank(b.Health)), cmp.Compare(a.ID, b.ID))
	})
	return slices.CompactFunc(all, func(a, b registry.Instance) bool { return a.Address == b.Address && firstPort(&a) == firstPort(&b) })
}

func firstPort(in *registry.Instance) uint32 {
	if len(in.Named) > 0 {
		return in.Named[0].Number
	}
	return in.Port
}

func rank(h registryv1.Health) int {
	switch h {
	case registryv1.Health_HEALTH_HEALTHY:
		return 0
	case registryv1.Health_HEALTH_DRAINING:
		return 1
	}
	return 2
}
