package registry

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// The kinds that registries publish (REG-8).
const (
	serviceKind = "Service"
	sliceKind   = "EndpointSlice"
	entryKind   = "ServiceEntry"
)

// Convert returns the objects of a service, and its problems. The objects are a Service
// and its EndpointSlices. If an address is a host name, or the service is outside of the
// mesh, they are one ServiceEntry (REG-1). Instances at impossible addresses are left out,
// with a warning. An invalid service has no objects; one of the problems is an error then.
func (s *Settings) Convert(v *Service) ([]watcher.Object, []problem.Diagnostic) {
	host, err := Host(v.Host)
	if err != nil {
		return nil, v.invalid("name", "no host can be made of it: "+err.Error(), "rename the service, or hide it with the watcher's settings")
	}
	all, leftOut := usable(v.Instances)
	if len(leftOut) > 0 {
		reason := fmt.Sprintf("%d of %d instances have an address that is neither an IP address nor a DNS name: %q", len(leftOut), len(v.Instances), leftOut[:min(len(leftOut), 3)])
		const advice = "register them with an IP address or a DNS name"
		if len(all) == 0 {
			return nil, v.invalid("address", reason, advice)
		}
		one := *v
		one.Instances = all
		objects, ds := s.Convert(&one)
		return objects, append(ds, v.says(problem.Warning, "address", reason+"; they are left out", advice))
	}
	protocol, ds := s.protocol(v)
	ports, warnings := s.ports(v, protocol)
	for _, warning := range warnings {
		ds = append(ds, v.says(problem.Warning, "ports", warning, "set the watcher's setting `port` for this service"))
	}
	foreign := 0
	for _, in := range v.Instances {
		_, others := labelsOf(in.Metadata)
		foreign += others
	}
	if foreign > 0 {
		ds = append(ds, v.says(problem.Info, "metadata", fmt.Sprintf("%d entries of its instances are no labels of Kubernetes", foreign), "nothing is to be done if no subset needs them"))
	}
	if v.External || slices.ContainsFunc(v.Instances, func(in Instance) bool { return !isIP(in.Address) }) {
		return v.objects(ds, named{entryKind, v.Name, s.entry(v, host, ports)})
	}
	parts := []named{{serviceKind, v.Name, &registryv1.Service{Hostname: host, Ports: ports}}}
	for _, l := range leaves(v.Instances) {
		slice := &registryv1.Endpoints{Service: v.Name}
		for _, in := range l.instances {
			slice.Endpoints = append(slice.Endpoints, endpoint(&in))
		}
		parts = append(parts, named{sliceKind, v.Name + "#" + l.prefix, slice})
	}
	return v.objects(ds, parts...)
}

// protocol returns the service's protocol, and what its instances disagree about.
func (s *Settings) protocol(v *Service) (string, []problem.Diagnostic) {
	protocol, several, unknown := protocolOf(v.Instances)
	var ds []problem.Diagnostic
	if len(several) > 1 {
		ds = append(ds, v.says(problem.Warning, "metadata.protocol",
			fmt.Sprintf("the instances name the protocols %s; %s counts", strings.Join(several, ", "), protocol), "give all instances one protocol"))
	}
	if len(unknown) > 0 {
		ds = append(ds, v.says(problem.Warning, "metadata.protocol",
			fmt.Sprintf("meshlog knows no protocol %q", unknown), "use http, http2, grpc, https, tls, tcp, mongo, mysql, redis, triple or dubbo"))
	}
	if protocol == "" {
		protocol = s.Protocol
	}
	return protocol, ds
}

func (v *Service) says(severity problem.Severity, field, reason, advice string) problem.Diagnostic {
	return problem.Diagnostic{Severity: severity, Code: "registry", Origin: v.Origin, Field: field, Reason: reason, Advice: advice}
}

func (v *Service) invalid(field, reason, advice string) []problem.Diagnostic {
	return []problem.Diagnostic{{
		Severity: problem.Error, Code: "invalid", Origin: v.Origin, Field: field, Reason: reason, Advice: advice,
		Effect: "its last good objects stay in service",
	}}
}

// named is a message with the kind and name of its object.
type named struct {
	kind, name string
	proto.Message
}

// objects encodes the messages, or returns the reason why one cannot be encoded: a text
// that is not UTF-8. Registries have no creation times and no actors (REG-8).
func (v *Service) objects(ds []problem.Diagnostic, messages ...named) ([]watcher.Object, []problem.Diagnostic) {
	all := make([]watcher.Object, 0, len(messages))
	for _, m := range messages {
		k, _ := kind.ByName(m.kind)
		b, err := k.Encode(m.Message)
		if err != nil {
			return nil, v.invalid("", err.Error(), "correct the service at its source")
		}
		all = append(all, watcher.Object{
			Kind: m.kind, Namespace: v.Namespace, Name: m.name, Value: ident.Value{Type: k.TypeURL, Bytes: b},
			Origin: v.Origin, SourceVersion: v.Version,
		})
	}
	return all, ds
}

// usable returns the instances that can be called, and the addresses of the others. One
// among them would make the whole ServiceEntry invalid, in the place of a good Service.
func usable(all []Instance) (good []Instance, leftOut []string) {
	for _, in := range all {
		if !isIP(in.Address) && !isName(in.Address) {
			leftOut = append(leftOut, in.Address)
		}
	}
	if len(leftOut) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(in Instance) bool { return slices.Contains(leftOut, in.Address) }), leftOut
}

// isName reports whether an address is a DNS name; a last label of digits is a bad IP address.
func isName(address string) bool {
	host, err := Host(address)
	return err == nil && host == strings.TrimSuffix(address, ".") && strings.Trim(host[strings.LastIndexByte(host, '.')+1:], "0123456789") != ""
}

func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}

func endpoint(in *Instance) *registryv1.Endpoint {
	labels, _ := labelsOf(in.Metadata)
	e := &registryv1.Endpoint{
		Addresses: []string{in.Address}, Health: in.Health, Labels: labels, Locality: in.Locality, Weight: in.Weight, Node: in.Node,
		MutualTls: in.Metadata[tlsMode] == "istio", Ports: map[string]uint32{},
	}
	if in.Port != 0 {
		e.Ports[""] = in.Port
	}
	for _, p := range in.Named {
		e.Ports[p.Name] = p.Number
	}
	return e
}

// entry returns the service as a ServiceEntry, which can have host names. It has only the
// instances that may take requests, because its endpoints have no health.
func (s *Settings) entry(v *Service, host string, ports []*registryv1.ServicePort) *networking.ServiceEntry {
	m := &networking.ServiceEntry{Hosts: []string{host}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC}
	if v.External {
		m.Location = networking.ServiceEntry_MESH_EXTERNAL
	}
	for _, p := range ports {
		word := p.GetAppProtocol()
		if word == "" {
			word, _, _ = strings.Cut(p.GetName(), "-")
		}
		if _, ok := protocols[strings.ToLower(word)]; !ok {
			word = ""
		}
		m.Ports = append(m.Ports, &networking.ServicePort{Number: p.GetNumber(), Name: p.GetName(), Protocol: strings.ToUpper(word)})
	}
	instances := slices.SortedFunc(slices.Values(v.Instances), func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
	for _, in := range instances {
		if !isIP(in.Address) {
			m.Resolution = networking.ServiceEntry_DNS
		}
		if in.Health == registryv1.Health_HEALTH_UNHEALTHY || in.Health == registryv1.Health_HEALTH_DRAINING {
			continue
		}
		m.Endpoints = append(m.Endpoints, workload(&in, ports))
	}
	return m
}

func workload(in *Instance, ports []*registryv1.ServicePort) *networking.WorkloadEntry {
	labels, _ := labelsOf(in.Metadata)
	w := &networking.WorkloadEntry{Address: in.Address, Labels: labels, Weight: in.Weight, Ports: map[string]uint32{}}
	if l := in.Locality; l != nil {
		w.Locality = strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
	}
	own := endpoint(in).GetPorts()
	for _, p := range ports {
		if n := own[p.GetName()]; n != 0 {
			w.Ports[p.GetName()] = n
		} else if in.Port != 0 {
			w.Ports[p.GetName()] = in.Port
		}
	}
	return w
}
