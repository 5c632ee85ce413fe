package index

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

const (
	serviceEntryKind  = "ServiceEntry"
	workloadEntryKind = "WorkloadEntry"
)

// settings decide how objects are read. PushContexts with equal settings share
// their indexes.
type settings struct {
	priority      []string // order of sources, from the MeshPolicy
	rootNamespace string
	domainSuffix  string
	serviceExport []string // default exportTo of each kind
	virtualExport []string
	ruleExport    []string
	clusterLocal  clusterLocal
	rawResources  []string // namespaces whose raw resources reach all proxies
	trustDomains  []string // of the mesh: its own, and the aliases
	// maxConnection limits connections to servers with TLS; 0: no limit.
	maxConnection time.Duration
	onDemand      bool // routers ask for certificates when a client needs one
	// merges are the hosts that several sources may share.
	merges []*configv1.MergeHosts
}

// claim is the service that one object claims for one host. Immutable.
type claim struct {
	service *Service // of this object alone
	// One of the two is the object.
	registry *registryv1.Service
	entry    *networking.ServiceEntry
}

func (c *claim) MemberKey() ident.Key { return c.service.Key }

// selects reports whether workloads are its endpoints. A ServiceEntry whose
// selector has no labels selects all of its namespace (SE-10).
func (c *claim) selects() bool {
	if c.entry != nil {
		return c.entry.GetWorkloadSelector() != nil
	}
	return len(c.registry.GetSelector()) > 0
}

// selector returns the labels of the workloads that are its endpoints.
func (c *claim) selector() map[string]string {
	if c.entry != nil {
		return c.entry.GetWorkloadSelector().GetLabels()
	}
	return c.registry.GetSelector()
}

// claims returns the claims of an object.
func (s *settings) claims(o world.Object) []*claim {
	switch m := o.Message.(type) {
	case *registryv1.Service:
		return []*claim{s.registryClaim(o, m)}
	case *networking.ServiceEntry:
		return s.entryClaims(o, m)
	}
	return nil
}

// hosts returns only the hosts of an object's claims.
func (s *settings) hosts(o world.Object) []string {
	switch m := o.Message.(type) {
	case *registryv1.Service:
		return []string{hostname.OfService(o.Key, m, s.domainSuffix)}
	case *networking.ServiceEntry:
		return m.GetHosts()
	}
	return nil
}

// registryClaim reads a Service of Kubernetes (SVC-1 to SVC-8) or of a registry.
func (s *settings) registryClaim(o world.Object, m *registryv1.Service) *claim {
	svc := &Service{
		ServiceID:  ServiceID{o.Key.Namespace, hostname.OfService(o.Key, m, s.domainSuffix)},
		Key:        o.Key,
		Created:    o.Created,
		Kubernetes: world.OfKubernetes(o.Key),
		Headless:   m.GetHeadless(),
		NodeLocal:  m.GetInternalTrafficLocal(), Distribution: m.GetTrafficDistribution(),
		AliasOf:   m.GetExternalName(),
		Addresses: plainAddresses(m.GetAddresses()),
		Labels:    m.GetLabels(),
		Selector:  m.GetSelector(),
		ExportTo:  visibilityOf(m.GetExportTo(), s.serviceExport, o.Key.Namespace),

		Identities: union(m.GetIdentities(), nil),
	}
	for _, account := range m.GetServiceAccounts() {
		svc.Accounts = union(svc.Accounts, []string{o.Key.Namespace + "/" + account})
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
		if strings.EqualFold(p.GetProtocol(), "udp") {
			continue // not of the TCP family
		}
		ports = append(ports, Port{
			Number: p.GetNumber(), Name: p.GetName(), Target: p.GetTargetPort(), Protocol: protocols[strings.ToLower(p.GetProtocol())],
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

// plainAddresses returns addresses with each CIDR of a single IP written as
// that IP (SE-1).
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

// sortPorts sorts ports by number and keeps the first of each number.
func sortPorts(ports []Port) []Port {
	slices.SortStableFunc(ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return slices.CompactFunc(ports, func(a, b Port) bool { return a.Number == b.Number })
}

// compareServices orders services that claim one host, the winner first:
// Kubernetes Services before all others (SE-14, AGG-1), so that neither another
// namespace nor a registry takes over a Service's host (I24).
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

// joins reports whether the service has the ports and endpoints of claim c besides those
// of the winner. Claims of one source join if they find endpoints in the same way (SE-14,
// AGG-3). Claims of several sources join only if the MeshPolicy says so (AGG-4), because
// otherwise any source could add endpoints to the services of another (AGG-2).
func (s *settings) joins(c, winner *claim) bool {
	if c == winner {
		return true
	}
	if c.service.Key.Source != winner.service.Key.Source {
		return s.merged(c.service, winner.service) && c.static() == winner.static() && c.service.Resolution == winner.service.Resolution
	}
	if winner.registry != nil {
		// Two names of one registry that give one host are two services.
		return c.registry != nil && (winner.service.Kubernetes || c.service.Key.Instance != winner.service.Key.Instance)
	}
	return c.entry != nil && c.service.Resolution == winner.service.Resolution
}

// static reports whether the claim is a Service or a ServiceEntry with addresses.
func (c *claim) static() bool { return c.service.Resolution == Static && c.service.AliasOf == "" }

// merged reports whether the sources of two services share their host.
func (s *settings) merged(a, b *Service) bool {
	return slices.ContainsFunc(s.merges, func(m *configv1.MergeHosts) bool {
		return slices.Contains(m.GetSources(), a.Key.Source) && slices.Contains(m.GetSources(), b.Key.Source) &&
			slices.ContainsFunc(m.GetHosts(), func(glob string) bool { return permit.Match(glob, a.Hostname) })
	})
}

// mergeClaims merges the claims of one namespace to one host, the winner first.
// Aliases are the host's.
//
// A service has a port if one cluster has it, so that a port can be rolled out
// cluster by cluster. Virtual IPs are kept apart, because each cluster assigns
// its own.
func (s *settings) mergeClaims(claims []*claim, aliases []string) *Service {
	winner := claims[0]
	all := *winner.service
	all.Aliases = aliases
	all.Ports, all.Addresses = slices.Clone(all.Ports), slices.Clone(all.Addresses)
	if winner.service.Key.Source == kubernetesSource && winner.registry != nil {
		all.Clusters = clustersOf(claims)
	}
	for _, c := range claims[1:] {
		if !s.joins(c, winner) || c.service.AliasOf != winner.service.AliasOf {
			continue
		}
		all.Ports = sortPorts(append(all.Ports, c.service.Ports...)) // stable, so the winner's win
		if winner.entry != nil && c.entry != nil {
			all.Addresses = plainAddresses(append(all.Addresses, c.service.Addresses...))
		}
		all.Accounts = union(all.Accounts, c.service.Accounts)
		all.Identities = union(all.Identities, c.service.Identities)
	}
	return &all
}

// union returns what is in a or b, sorted and each once; nil: nothing.
func union(a, b []string) []string {
	if len(a)+len(b) == 0 {
		return nil
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// clustersOf returns the clusters of Kubernetes among the claims' sources.
func clustersOf(claims []*claim) []ServiceCluster {
	var all []ServiceCluster
	for _, c := range claims {
		if c.service.Key.Source == kubernetesSource && c.registry != nil {
			all = append(all, ServiceCluster{c.service.Key.Instance, c.service.Addresses})
		}
	}
	slices.SortStableFunc(all, func(a, b ServiceCluster) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b ServiceCluster) bool { return a.Name == b.Name })
}

// claimProblems reports the claims that do not count.
func (s *settings) claimProblems(claims []*claim) []problem.Diagnostic {
	if len(claims) == 0 {
		return nil
	}
	winner := claims[0]
	var ds []problem.Diagnostic
	for _, c := range claims[1:] {
		if s.joins(c, winner) {
			if c.registry != nil && winner.registry != nil {
				ds = append(ds, clusterProblems(winner.service, c.service)...)
			}
			continue
		}
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: c.service.Key, Field: c.service.hostField(),
			Reason: fmt.Sprintf("host %s belongs to %s, which %s", c.service.Hostname, winner.service.Key, s.whyServiceWins(winner.service, c.service)),
			Advice: s.adviceOnClaim(winner.service, c.service),
			Effect: "this object does not define the host",
		})
	}
	return ds
}

// adviceOnClaim says what to do about a claim that lost. Sources that find
// endpoints alike can share the host.
func (s *settings) adviceOnClaim(winner, loser *Service) string {
	if winner.Key.Source != loser.Key.Source && winner.Resolution == loser.Resolution {
		return fmt.Sprintf("use another host, remove one of them, or let %s and %s share the host in mergeHosts of MeshPolicy default", winner.Key.Source, loser.Key.Source)
	}
	return "use another host, or remove one of them"
}

// clusterProblems reports how a Service contradicts the one of the winning
// cluster.
func clusterProblems(winner, s *Service) []problem.Diagnostic {
	differs := func(field, what, effect string) problem.Diagnostic {
		return problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: s.Key, Field: field,
			Reason: fmt.Sprintf("%s differs from %s", what, winner.Key), Advice: "make the Services of all clusters alike", Effect: effect,
		}
	}
	if s.AliasOf != winner.AliasOf {
		return []problem.Diagnostic{differs("spec.externalName", "the target", "this object has no effect")}
	}
	var ds []problem.Diagnostic
	if s.Headless != winner.Headless {
		ds = append(ds, differs("spec.clusterIP", "being headless", "the service is headless if that one is"))
	}
	for _, p := range s.Ports {
		if q, ok := winner.Port(p.Number); ok && q.Protocol != p.Protocol {
			ds = append(ds, differs("spec.ports", fmt.Sprintf("the protocol of port %d", p.Number), "the port has that one's protocol"))
		}
	}
	return ds
}

// whyServiceWins explains why a wins over b.
func (s *settings) whyServiceWins(a, b *Service) string {
	if a.Kubernetes && !b.Kubernetes {
		return "is a Service"
	}
	return world.WhyWins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

// hostField returns the field of its object that sets the host.
func (s *Service) hostField() string {
	switch {
	case s.Kubernetes:
		return "metadata.name"
	case s.Key.Kind == world.ServiceKind:
		return "hostname"
	}
	return "spec.hosts"
}

func sameMessage(a, b proto.Message) bool { return a == b || proto.Equal(a, b) }

// Defines reports whether the object of a key defines the host, alone or with others: the host
// of a ServiceEntry may belong to another source (AGG-2).
func (pc *PushContext) Defines(k ident.Key, host string) bool {
	claims := pc.services.claims.Get(ServiceID{k.Namespace, host})
	return slices.ContainsFunc(claims, func(c *claim) bool {
		return c.service.Key == k && pc.settings.joins(c, claims[0])
	})
}
