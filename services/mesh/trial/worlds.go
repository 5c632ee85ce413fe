package trial

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// entry returns a ServiceEntry with ports of these protocols from 80 on, "" is
// detected, and others for HTTP.
func entry(host string, resolution networking.ServiceEntry_Resolution, protocols []string, others ...uint32) *networking.ServiceEntry {
	se := &networking.ServiceEntry{Hosts: []string{host}, Addresses: []string{"240.0.0.1"}, Resolution: resolution}
	for i, protocol := range protocols {
		if n := uint32(80 + i); !slices.Contains(others, n) {
			se.Ports = append(se.Ports, &networking.ServicePort{Number: n, Name: fmt.Sprint("p", n), Protocol: protocol})
		}
	}
	for _, n := range others {
		se.Ports = append(se.Ports, &networking.ServicePort{Number: n, Name: fmt.Sprint("p", n), Protocol: "HTTP"})
	}
	switch resolution {
	case networking.ServiceEntry_STATIC:
		se.Endpoints = []*networking.WorkloadEntry{{Address: "10.0.0.1"}}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		se.Endpoints = []*networking.WorkloadEntry{{Address: "trial.example.com"}}
	}
	return se
}

// worldOfRule returns a world in which a rule counts for services of each
// resolution, with and without requests. A rule for some workloads is tried for
// all. Subsets without a policy add nothing but a cluster for each port.
func worldOfRule(dr *networking.DestinationRule) []object {
	dr = shallow(dr)
	dr.Host, dr.ExportTo, dr.WorkloadSelector = "*", nil, nil
	dr.Subsets = slices.DeleteFunc(slices.Clone(dr.GetSubsets()), func(s *networking.Subset) bool { return s.GetTrafficPolicy() == nil })
	var ports []uint32
	for _, s := range append(slices.Clone(dr.GetSubsets()), &networking.Subset{TrafficPolicy: dr.GetTrafficPolicy()}) {
		for _, p := range s.GetTrafficPolicy().GetPortLevelSettings() {
			ports = append(ports, p.GetPort().GetNumber())
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	return []object{
		{"DestinationRule", "trial", dr},
		{"ServiceEntry", "static", entry("static.example.com", networking.ServiceEntry_STATIC, []string{"HTTP", "TCP", ""}, ports...)},
		{"ServiceEntry", "dns", entry("dns.example.com", networking.ServiceEntry_DNS, []string{"HTTP"})},
		{"ServiceEntry", "none", entry("none.example.com", networking.ServiceEntry_NONE, []string{"TCP"})},
	}
}

// hashes reports whether a policy of a rule hashes requests.
func hashes(dr *networking.DestinationRule) bool {
	return somewhere(dr, func(p policy) bool { return p.GetLoadBalancer().GetConsistentHash() != nil })
}

// namesCredential reports whether a policy of a rule names a credential.
func namesCredential(dr *networking.DestinationRule) bool {
	return somewhere(dr, func(p policy) bool { return p.GetTls().GetCredentialName() != "" })
}

// policy is the policy of a rule, of a subset or of a port.
type policy interface {
	GetLoadBalancer() *networking.LoadBalancerSettings
	GetTls() *networking.ClientTLSSettings
}

func somewhere(dr *networking.DestinationRule, is func(policy) bool) bool {
	in := func(t *networking.TrafficPolicy) bool {
		return is(t) || slices.ContainsFunc(t.GetPortLevelSettings(), func(p *networking.TrafficPolicy_PortTrafficPolicy) bool { return is(p) })
	}
	return in(dr.GetTrafficPolicy()) || slices.ContainsFunc(dr.GetSubsets(), func(s *networking.Subset) bool { return in(s.GetTrafficPolicy()) })
}

// worldOfEntry returns a world with a ServiceEntry that every proxy sees. Where
// endpoints come by EDS it has none: validation checks each field of those, and
// they may be thousands.
func worldOfEntry(se *networking.ServiceEntry) []object {
	se = shallow(se)
	se.ExportTo = nil
	if r := se.GetResolution(); r == networking.ServiceEntry_STATIC || r == networking.ServiceEntry_NONE {
		se.Endpoints = nil
	}
	return []object{{"ServiceEntry", "trial", se}}
}

// worldOfGateway returns a world with a Gateway that a VirtualService routes.
func worldOfGateway(g *networking.Gateway) []object {
	to := &networking.Destination{Host: "static.example.com", Port: &networking.PortSelector{Number: 80}}
	return []object{
		{"Gateway", "trial", g},
		{"VirtualService", "trial", &networking.VirtualService{
			Hosts: []string{"*"}, Gateways: []string{"trial"},
			Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: to}}}},
			Tcp:  []*networking.TCPRoute{{Route: []*networking.RouteDestination{{Destination: to}}}},
		}},
	}
}

// worldOfMesh returns a world in which every setting of a mesh counts for
// something.
func worldOfMesh(m *mesh.MeshConfig) []object {
	g := &networking.Gateway{Servers: []*networking.Server{
		{Port: &networking.Port{Number: 8080, Name: "http", Protocol: "HTTP"}, Hosts: []string{"*"}},
		{Port: &networking.Port{Number: 8081, Name: "tcp", Protocol: "TCP"}, Hosts: []string{"*"}},
	}}
	m = shallow(m)
	m.DefaultServiceExportTo, m.DefaultVirtualServiceExportTo, m.DefaultDestinationRuleExportTo = nil, nil, nil
	rule := worldOfRule(&networking.DestinationRule{TrafficPolicy: &networking.TrafficPolicy{
		Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE},
	}})
	rule[0].message.(*networking.DestinationRule).Host = "static.example.com" // the others have no TLS
	all := append(append(worldOfGateway(g), rule...), object{"MeshConfig", "default", m})
	return append(all, called(m)...)
}

// called lets each external authorizer of a mesh decide about some workloads, and each access
// log and tracer observe some. It moves them to services of the trial.
func called(m *mesh.MeshConfig) (all []object) {
	var watching observers
	m.ExtensionProviders = slices.Clone(m.ExtensionProviders)
	for i, p := range m.ExtensionProviders {
		host := fmt.Sprintf("auth%d.example.com", i)
		p = proto.CloneOf(p)
		m.ExtensionProviders[i] = p
		se := entry(host, networking.ServiceEntry_STATIC, nil)
		port := &networking.ServicePort{Number: 80, Name: "grpc", Protocol: "GRPC"}
		switch {
		case p.GetEnvoyExtAuthzHttp() != nil:
			p.GetEnvoyExtAuthzHttp().Service, port.Number = host, p.GetEnvoyExtAuthzHttp().GetPort()
		case p.GetEnvoyExtAuthzGrpc() != nil:
			p.GetEnvoyExtAuthzGrpc().Service, port.Number = host, p.GetEnvoyExtAuthzGrpc().GetPort()
		default:
			if !moveObserver(p, host, port) {
				continue
			}
			se.Ports = append(se.Ports, port)
			all = append(all, object{"ServiceEntry", fmt.Sprint("observer", i), se})
			watching.add(p)
			continue
		}
		se.Ports = append(se.Ports, port)
		name := fmt.Sprint("auth", i)
		all = append(all, object{"ServiceEntry", name, se}, object{"AuthorizationPolicy", name, &security.AuthorizationPolicy{
			Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"asks": name}},
			Action:   security.AuthorizationPolicy_CUSTOM, Rules: []*security.Rule{{}},
			ActionDetail: &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: p.GetName()}},
		}})
	}
	return append(all, watching.objects()...)
}

// shallow returns a copy of m that shares what m holds.
func shallow[M proto.Message](m M) M {
	to := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(fd, v)
		return true
	})
	return to.Interface().(M)
}

// moveObserver moves an access log or a tracer to a host, and sets the number of the port.
func moveObserver(p *mesh.MeshConfig_ExtensionProvider, host string, port *networking.ServicePort) bool {
	switch {
	case p.GetEnvoyHttpAls() != nil:
		p.GetEnvoyHttpAls().Service, port.Number = host, p.GetEnvoyHttpAls().GetPort()
	case p.GetEnvoyTcpAls() != nil:
		p.GetEnvoyTcpAls().Service, port.Number = host, p.GetEnvoyTcpAls().GetPort()
	case p.GetEnvoyOtelAls() != nil:
		p.GetEnvoyOtelAls().Service, port.Number = host, p.GetEnvoyOtelAls().GetPort()
	case p.GetOpentelemetry() != nil:
		p.GetOpentelemetry().Service, port.Number = host, p.GetOpentelemetry().GetPort()
	case p.GetZipkin() != nil:
		p.GetZipkin().Service, port.Number = host, p.GetZipkin().GetPort()
	case p.GetDatadog() != nil:
		p.GetDatadog().Service, port.Number = host, p.GetDatadog().GetPort()
	case p.GetSkywalking() != nil:
		p.GetSkywalking().Service, port.Number = host, p.GetSkywalking().GetPort()
	default:
		return false
	}
	return true
}

// observers are Telemetries with all access logs and tracers. A workload has one tracer for what
// it calls and one for what calls it, so a Telemetry has two: each one is a class of proxies.
type observers []*telemetry.Telemetry

func (all *observers) add(p *mesh.MeshConfig_ExtensionProvider) {
	providers := []*telemetry.ProviderRef{{Name: p.GetName()}}
	if p.GetEnvoyHttpAls() != nil || p.GetEnvoyTcpAls() != nil || p.GetEnvoyOtelAls() != nil {
		if len(*all) == 0 {
			*all = observers{{}}
		}
		(*all)[0].AccessLogging = append((*all)[0].AccessLogging, &telemetry.AccessLogging{Providers: providers})
		return
	}
	entry := &telemetry.Tracing{Providers: providers, Match: &telemetry.Tracing_TracingSelector{Mode: telemetry.WorkloadMode_CLIENT}}
	n := len(*all)
	if n == 0 || len((*all)[n-1].GetTracing()) == 2 {
		*all = append(*all, &telemetry.Telemetry{Tracing: []*telemetry.Tracing{entry}})
		return
	}
	last := (*all)[n-1]
	if len(last.GetTracing()) == 1 {
		entry.Match.Mode = telemetry.WorkloadMode_SERVER
	}
	last.Tracing = append(last.Tracing, entry)
}

func (all *observers) objects() (objects []object) {
	for i, t := range *all {
		name := fmt.Sprint("observer", i)
		t.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"observed": name}}
		objects = append(objects, object{"Telemetry", name, t})
	}
	return objects
}
