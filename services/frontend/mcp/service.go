package mcp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
)

const (
	entryType = "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry"
	// tlsMode is the label of Istio for endpoints with mutual TLS.
	tlsMode, tlsModeIstio = "security.istio.io/tlsMode", "istio"
)

// protocols as ServiceEntries name them; none: Istio detects it.
var protocols = map[index.Protocol]string{
	index.HTTP: "HTTP", index.HTTP2: "HTTP2", index.GRPC: "GRPC", index.GRPCWeb: "GRPC-WEB", index.HTTPS: "HTTPS", index.TLS: "TLS",
	index.TCP: "TCP", index.Mongo: "MONGO", index.MySQL: "MYSQL", index.Redis: "REDIS",
}

// serviceEntry returns a service of a registry as a ServiceEntry. It has the healthy endpoints
// only, because a WorkloadEntry has no health.
func serviceEntry(s *index.Service, endpoints index.Endpoints, hosts []string) *networking.ServiceEntry {
	entry := &networking.ServiceEntry{
		Hosts: hosts, Addresses: s.Addresses,
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		SubjectAltNames: s.SubjectAltNames,
	}
	if s.ExportTo != nil && !slices.Equal(s.ExportTo, index.Visibility{"*"}) {
		entry.ExportTo = s.ExportTo
	}
	ports, instances := instancesOf(s, endpoints)
	names := portNames(ports)
	for i, p := range ports {
		entry.Ports = append(entry.Ports, &networking.ServicePort{Number: p.Number, Name: names[i], Protocol: protocols[p.Protocol]})
	}
	for _, in := range instances {
		w := workloadEntry(in.endpoint)
		w.Ports = make(map[string]uint32, len(ports))
		for i, p := range ports {
			w.Ports[names[i]] = in.ports[p.Number]
		}
		entry.Endpoints = append(entry.Endpoints, w)
	}
	return entry
}

func workloadEntry(e *index.Endpoint) *networking.WorkloadEntry {
	w := &networking.WorkloadEntry{
		Address: e.Address, Network: e.Network, ServiceAccount: e.ServiceAccount, Labels: e.Labels,
		Locality: strings.TrimRight(e.Locality.Region+"/"+e.Locality.Zone+"/"+e.Locality.SubZone, "/"),
	}
	if e.Weight > 1 {
		w.Weight = e.Weight
	}
	if e.MutualTLS && e.Labels[tlsMode] != tlsModeIstio {
		w.Labels = maps.Clone(e.Labels)
		if w.Labels == nil {
			w.Labels = map[string]string{}
		}
		w.Labels[tlsMode] = tlsModeIstio
	}
	return w
}

// portNames returns a name for each port: its own or, if it has none or another port has it,
// one with its number. Endpoints find their ports by name.
func portNames(ports []index.Port) []string {
	names := make([]string, len(ports))
	taken := map[string]bool{}
	for i, p := range ports {
		name := p.Name
		for name == "" || taken[name] {
			name = fmt.Sprintf("%s-%d", cmp.Or(name, "port"), p.Number)
		}
		names[i], taken[name] = name, true
	}
	return names
}

// instance is a healthy endpoint with its number for each port of the service.
type instance struct {
	endpoint *index.Endpoint
	ports    map[uint32]uint32
}

// instancesOf returns the ports of a service, and its healthy instances with a number for each
// of them. The index has endpoints by port: those of equal attributes are one instance, and
// several on one port are as many instances, in the order of their numbers.
//
// Istio sends requests for a port that an instance lacks to the port's own number, where
// another service may listen. So a port that most instances lack is left out, and so is an
// instance that lacks one of the others.
func instancesOf(s *index.Service, endpoints index.Endpoints) ([]index.Port, []*instance) {
	var all []*instance
	byKey := map[string][]*instance{}
	with := map[uint32]int{}
	for _, p := range s.Ports {
		seen := map[string]int{}
		for i := range endpoints[p.Number] {
			e := &endpoints[p.Number][i]
			if e.Health != index.Healthy || e.Address == "" {
				continue
			}
			key := instanceKey(e)
			n := seen[key]
			if seen[key]++; n == len(byKey[key]) {
				in := &instance{endpoint: e, ports: map[uint32]uint32{}}
				byKey[key], all = append(byKey[key], in), append(all, in)
			}
			byKey[key][n].ports[p.Number] = e.Port
			with[p.Number]++
		}
	}
	if len(all) == 0 {
		return s.Ports, nil
	}
	ports := slices.DeleteFunc(slices.Clone(s.Ports), func(p index.Port) bool { return with[p.Number]*2 < len(all) })
	all = slices.DeleteFunc(all, func(in *instance) bool {
		return slices.ContainsFunc(ports, func(p index.Port) bool { return in.ports[p.Number] == 0 })
	})
	if len(ports) == 0 {
		return s.Ports, nil
	}
	return ports, all
}

// instanceKey returns the attributes of an endpoint, without its port, as text.
func instanceKey(e *index.Endpoint) string {
	keys := slices.Sorted(maps.Keys(e.Labels))
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %v %d %t %q %q", e.Address, e.Network, e.Locality, e.Weight, e.MutualTLS, e.ServiceAccount, e.Workload)
	for _, k := range keys {
		fmt.Fprintf(&b, " %q=%q", k, e.Labels[k])
	}
	return b.String()
}

// serviceOf returns the entry of a service. Its name is the host, which no other service of
// the namespace has.
func serviceOf(s *index.Service, endpoints index.Endpoints, name string, hosts []string) *entry {
	e := entry{name: s.Namespace + "/" + name, source: s.Key.Source, kind: serviceEntryKind, namespace: s.Namespace, kubernetes: s.Kubernetes}
	return e.encode(&mcp.Metadata{CreateTime: created(s.Created), Labels: s.Labels}, &anypb.Any{TypeUrl: entryType, Value: marshal(serviceEntry(s, endpoints, hosts))})
}
