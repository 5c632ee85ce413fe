package index

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

const (
	serviceEntryKind  = "ServiceEntry"
	workloadEntryKind = "WorkloadEntry"
)

// settings is what the mesh says about how objects are to be read. PushContexts
// of equal settings share them.
type settings struct {
	priority      []string // of sources, as the policy says
	rootNamespace string
	domainSuffix  string
	serviceExport []string // the default exportTo of kinds
	virtualExport []string
	ruleExport    []string
	clusterLocal  clusterLocal
}

// claim is what one object says of one host. It is immutable.
type claim struct {
	service *Service // of this object alone
	// One of the two is what the object says.
	registry *registryv1.Service
	entry    *networking.ServiceEntry
}

func (c *claim) MemberKey() ident.Key { return c.service.Key }

// selector is of the workloads that are its endpoints; empty: it selects none.
func (c *claim) selector() map[string]string {
	if c.entry != nil {
		return c.entry.GetWorkloadSelector().GetLabels()
	}
	return c.registry.GetSelector()
}

// claims reads which hosts an object claims.
func (s *settings) claims(o world.Object) []*claim {
	switch m := o.Message.(type) {
	case *registryv1.Service:
		return []*claim{s.registryClaim(o, m)}
	case *networking.ServiceEntry:
		return s.entryClaims(o, m)
	}
	return nil
}

// hosts reads the hosts of claims without the rest.
func (s *settings) hosts(o world.Object) []string {
	switch m := o.Message.(type) {
	case *registryv1.Service:
		return []string{s.registryHost(o.Key, m)}
	case *networking.ServiceEntry:
		return m.GetHosts()
	}
	return nil
}

func (s *settings) registryHost(k ident.Key, m *registryv1.Service) string {
	if m.GetHostname() != "" {
		return m.GetHostname()
	}
	return k.Name + "." + k.Namespace + ".svc." + cmp.Or(m.GetDomainSuffix(), s.domainSuffix)
}

// registryClaim reads a service of a registry (SVC-1 to SVC-8).
func (s *settings) registryClaim(o world.Object, m *registryv1.Service) *claim {
	svc := &Service{
		ServiceID:  ServiceID{o.Key.Namespace, s.registryHost(o.Key, m)},
		Key:        o.Key,
		Created:    o.Created,
		Kubernetes: true,
		Headless:   m.GetHeadless(),
		AliasOf:    m.GetExternalName(),
		Addresses:  plainAddresses(m.GetAddresses()),
		Labels:     m.GetLabels(),
		ExportTo:   visibilityOf(m.GetExportTo(), s.serviceExport, o.Key.Namespace),
	}
	if svc.Headless {
		svc.Resolution = Passthrough
	}
	for _, p := range m.GetPorts() {
		if t := p.GetTransport(); t != "" && t != "TCP" {
			continue
		}
		svc.Ports = append(svc.Ports, Port{
			Number: p.GetNumber(), Name: p.GetName(), Target: p.GetTargetPort(),
			Protocol: selectProtocol(p.GetNumber(), p.GetAppProtocol(), p.GetName()),
		})
	}
	svc.Ports = sortPorts(svc.Ports)
	return &claim{service: svc, registry: m}
}

var resolutions = map[networking.ServiceEntry_Resolution]Resolution{
	networking.ServiceEntry_NONE:            Passthrough,
	networking.ServiceEntry_STATIC:          Static,
	networking.ServiceEntry_DNS:             DNS,
	networking.ServiceEntry_DNS_ROUND_ROBIN: DNSRoundRobin,
	networking.ServiceEntry_DYNAMIC_DNS:     DynamicDNS,
}

// entryClaims reads a ServiceEntry, a claim for each host (SE-1 to SE-12).
func (s *settings) entryClaims(o world.Object, m *networking.ServiceEntry) []*claim {
	var ports []Port
	for _, p := range m.GetPorts() {
		if isUDP(p.GetProtocol()) {
			continue
		}
		ports = append(ports, Port{
			Number: p.GetNumber(), Name: p.GetName(), Target: p.GetTargetPort(), Protocol: namedProtocol(p.GetProtocol()),
		})
	}
	ports = sortPorts(ports)
	var claims []*claim
	for _, host := range m.GetHosts() {
		claims = append(claims, &claim{entry: m, service: &Service{
			ServiceID:       ServiceID{o.Key.Namespace, host},
			Key:             o.Key,
			Created:         o.Created,
			Addresses:       plainAddresses(m.GetAddresses()),
			Ports:           ports,
			Resolution:      resolutions[m.GetResolution()],
			External:        m.GetLocation() == networking.ServiceEntry_MESH_EXTERNAL,
			ExportTo:        visibilityOf(m.GetExportTo(), s.serviceExport, o.Key.Namespace),
			SubjectAltNames: m.GetSubjectAltNames(),
		}})
	}
	return claims
}

// plainAddresses is addresses of which those that are a single IP are written
// as one (SE-1).
func plainAddresses(addresses []string) []string {
	plain := make([]string, 0, len(addresses))
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a); err == nil && p.IsSingleIP() {
			a = p.Addr().String()
		}
		if !slices.Contains(plain, a) {
			plain = append(plain, a)
		}
	}
	if len(plain) == 0 {
		return nil
	}
	return plain
}

// sortPorts is ports by number; of several of one number the first.
func sortPorts(ports []Port) []Port {
	slices.SortStableFunc(ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return slices.CompactFunc(ports, func(a, b Port) bool { return a.Number == b.Number })
}

// compareServices orders what claims one host, the one that wins first: what a
// registry knows comes before every ServiceEntry (SE-14, I24).
func (s *settings) compareServices(a, b *Service) int {
	switch {
	case a.Kubernetes && !b.Kubernetes:
		return -1
	case b.Kubernetes && !a.Kubernetes:
		return 1
	}
	return world.Wins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

func (s *settings) compareClaims(a, b *claim) int { return s.compareServices(a.service, b.service) }

// joins says whether the endpoints of a claim are those of the winning one of
// its namespace too: clusters of one registry have a Service together, and so
// have ServiceEntries that find endpoints in the same way (SE-14).
func (c *claim) joins(winner *claim) bool {
	if winner.registry != nil {
		return c.registry != nil && c.service.Key.Source == winner.service.Key.Source
	}
	return c.entry != nil && c.service.Resolution == winner.service.Resolution
}

// mergeClaims puts the claims of one namespace to one host together, the one
// that wins first. Aliases are those of the host.
//
// Several clusters have a port if one of them has it, so that a port may come
// to them one by one. Their virtual IPs are kept apart: what one cluster calls by
// an address is something else in the next.
func mergeClaims(claims []*claim, aliases []string) *Service {
	winner := claims[0]
	s := *winner.service
	s.Aliases = aliases
	s.Ports, s.Addresses = slices.Clone(s.Ports), slices.Clone(s.Addresses)
	if winner.service.Key.Source == kubernetesSource && winner.registry != nil {
		s.Clusters = clustersOf(claims)
	}
	for _, c := range claims[1:] {
		if !c.joins(winner) || c.service.AliasOf != winner.service.AliasOf {
			continue
		}
		s.Ports = sortPorts(append(s.Ports, c.service.Ports...)) // stable: the winner's stay
		if winner.entry != nil {
			s.Addresses = plainAddresses(append(s.Addresses, c.service.Addresses...))
		}
	}
	return &s
}

// clustersOf is where the Services are that those claims are of.
func clustersOf(claims []*claim) []ServiceCluster {
	var all []ServiceCluster
	for _, c := range claims {
		if c.joins(claims[0]) {
			all = append(all, ServiceCluster{c.service.Key.Instance, c.service.Addresses})
		}
	}
	slices.SortStableFunc(all, func(a, b ServiceCluster) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b ServiceCluster) bool { return a.Name == b.Name })
}

// claimProblems says which of the claims do not count.
func (s *settings) claimProblems(claims []*claim) []problem.Diagnostic {
	winner := claims[0]
	var ds []problem.Diagnostic
	for _, c := range claims[1:] {
		if c.joins(winner) {
			if c.registry != nil {
				ds = append(ds, clusterProblems(winner.service, c.service)...)
			}
			continue
		}
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: c.service.Key, Field: c.service.hostField(),
			Reason: fmt.Sprintf("host %s belongs to %s, which %s", c.service.Hostname, winner.service.Key, s.whyServiceWins(winner.service, c.service)),
			Advice: "use another host, or remove one of them",
			Effect: "this one counts for nothing as far as this host goes",
		})
	}
	return ds
}

// clusterProblems says in what a Service differs from that of the cluster that
// wins, as far as both cannot hold.
func clusterProblems(winner, s *Service) []problem.Diagnostic {
	differs := func(field, reason, effect string) problem.Diagnostic {
		return problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: s.Key, Field: field,
			Reason: fmt.Sprintf("%s than in %s", reason, winner.Key), Advice: "make the Services of all clusters alike", Effect: effect,
		}
	}
	if s.AliasOf != winner.AliasOf {
		return []problem.Diagnostic{differs("spec.externalName", "is another", "this one counts for nothing")}
	}
	var ds []problem.Diagnostic
	if s.Headless != winner.Headless {
		ds = append(ds, differs("spec.clusterIP", "is headless or not, other", "the service is what it is there"))
	}
	for _, p := range s.Ports {
		if q, ok := winner.Port(p.Number); ok && q.Protocol != p.Protocol {
			ds = append(ds, differs("spec.ports", fmt.Sprintf("port %d has another protocol", p.Number), "the protocol is that of there"))
		}
	}
	return ds
}

// whyServiceWins says by what a wins over b.
func (s *settings) whyServiceWins(a, b *Service) string {
	if a.Kubernetes && !b.Kubernetes {
		return "is a Service"
	}
	return world.WhyWins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

// hostField is the field of its object that gives the host.
func (s *Service) hostField() string {
	if s.Kubernetes {
		return "metadata.name"
	}
	return "spec.hosts"
}

func sameMessage(a, b proto.Message) bool { return a == b || proto.Equal(a, b) }
