package index

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// endpointIndex holds the endpoints of services and the objects that they come
// from.
type endpointIndex struct {
	slices    table.Groups[ident.Key, *slice]  // by the Service, whether it exists yet or not
	workloads table.Groups[string, *workload]  // by namespace
	selecting table.Groups[string, *selecting] // by namespace
	byID      table.Table[ServiceID, Endpoints]
	spreads   table.Table[ServiceID, *spread] // only of services that have one
	byPair    table.Groups[labelPair, *selecting]
	addressed table.Groups[addressIn, *addressed]
	listed    table.Table[ServiceID, bool] // services in addressed
	networks  table.Counter                // of spreads
	// identities behind services, of those that have some; mutual is how many of them
	// speak mutual TLS.
	identities table.Table[ServiceID, *Identities]
	mutual     int
}

// slice holds some endpoints of a Service.
type slice struct {
	ident.Key
	*registryv1.Endpoints
}

// workload is an object that services may select.
type workload struct {
	ident.Key
	labels map[string]string
	entry  *networking.WorkloadEntry
	pod    *registryv1.Workload // or a Pod
}

// selecting is an object whose hosts select workloads as endpoints.
type selecting struct {
	ident.Key
	ids      []ServiceID
	selector map[string]string
	pods     bool // selects Pods too
}

func (s *slice) MemberKey() ident.Key     { return s.Key }
func (w *workload) MemberKey() ident.Key  { return w.Key }
func (s *selecting) MemberKey() ident.Key { return s.Key }

func newWorkload(o world.Object) *workload {
	switch m := o.Message.(type) {
	case *networking.WorkloadEntry:
		return &workload{Key: o.Key, labels: m.GetLabels(), entry: m}
	case *registryv1.Workload:
		return &workload{Key: o.Key, labels: m.GetLabels(), pod: m}
	}
	return nil
}

// newSelecting reads a service's selector; nil: none.
func (s *settings) newSelecting(o world.Object) *selecting {
	x := &selecting{Key: o.Key}
	switch m := o.Message.(type) {
	case *registryv1.Service:
		if x.selector = m.GetSelector(); len(x.selector) == 0 {
			return nil
		}
	case *networking.ServiceEntry:
		if m.GetWorkloadSelector() == nil {
			return nil
		}
		x.selector, x.pods = m.GetWorkloadSelector().GetLabels(), true
	}
	for _, host := range s.hosts(o) {
		x.ids = append(x.ids, ServiceID{o.Key.Namespace, host})
	}
	return x
}

func (s *selecting) selects(w *workload) bool {
	return (w.entry != nil || s.pods) && matchLabels(s.selector, w.labels)
}

// matchLabels reports whether labels have all entries of a selector.
func matchLabels(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// endpointEdit makes one endpointIndex from another.
type endpointEdit struct {
	*transition
	from      endpointIndex
	slices    *table.GroupsEdit[ident.Key, *slice]
	workloads *table.GroupsEdit[string, *workload]
	selecting *table.GroupsEdit[string, *selecting]
	byPair    *table.GroupsEdit[labelPair, *selecting]
	targets   *targetEdit
	// services whose endpoints may differ
	touched map[ServiceID]struct{}
	moved   []*workload // before and after the change
}

// next returns the index after changes, with the new services and networks.
// Workloads of shards for which moved reports true may be in other networks; nil:
// of none.
func (x endpointIndex) next(
	t *transition, w *world.World, changes map[string][]change,
	services *serviceIndex, networks *networkIndex, moved func(ident.Shard) bool,
) endpointIndex {
	e := &endpointEdit{
		transition: t, from: x,
		slices:    x.slices.Edit(func(a, b *slice) int { return world.CompareKeys(a.Key, b.Key) }),
		workloads: x.workloads.Edit(func(a, b *workload) int { return world.CompareKeys(a.Key, b.Key) }),
		selecting: x.selecting.Edit(func(a, b *selecting) int { return world.CompareKeys(a.Key, b.Key) }),
		byPair:    x.byPair.Edit(func(a, b *selecting) int { return world.CompareKeys(a.Key, b.Key) }),
		touched:   make(map[ServiceID]struct{}),
	}
	e.targets = &targetEdit{
		transition: t, listed: x.listed.Edit(), objects: make(map[ServiceID]struct{}),
		addressed: x.addressed.Edit(func(a, b *addressed) int { return world.CompareKeys(a.Key, b.Key) }),
	}
	for _, c := range slices.Concat(changes[world.ServiceKind], changes[serviceEntryKind]) {
		for o, after := range c.versions() {
			e.touch(*o)
			for _, host := range e.hosts(*o) {
				id := ServiceID{o.Key.Namespace, host}
				e.targets.objects[id] = struct{}{}
				// It may decide about the port and the order of a service that selects workloads
				// by another object.
				if slices.ContainsFunc(services.claims.Get(id), (*claim).selects) {
					e.changed(Input{Kind: InputTargets, A: id.Namespace})
				}
			}
			if s := e.newSelecting(*o); s != nil {
				e.selecting.Keep(o.Key.Namespace, s, after)
				e.byPair.Keep(s.pair(), s, after)
				e.changed(Input{Kind: InputTargets, A: o.Key.Namespace})
			}
		}
	}
	for _, c := range changes[world.EndpointsKind] {
		for o, after := range c.versions() {
			e.slice(w, o, after)
		}
	}
	for _, c := range slices.Concat(changes[workloadEntryKind], changes[world.WorkloadKind]) {
		e.noteWorkload(c)
		for o, after := range c.versions() {
			if one := newWorkload(*o); one != nil {
				e.workloads.Keep(one.Namespace, one, after)
				e.moved = append(e.moved, one)
			}
		}
	}
	return e.done(services, networks, moved)
}

// touch marks the endpoints of an object's hosts.
func (e *endpointEdit) touch(o world.Object) {
	for _, host := range e.hosts(o) {
		e.touched[ServiceID{o.Key.Namespace, host}] = struct{}{}
	}
}

// slice puts or removes an EndpointSlice.
func (e *endpointEdit) slice(w *world.World, o *world.Object, after bool) {
	m, ok := o.Message.(*registryv1.Endpoints)
	if !ok {
		return
	}
	service := o.Key
	service.Kind, service.Name = world.ServiceKind, m.GetService()
	e.slices.Keep(service, &slice{o.Key, m}, after)
	if s := w.Served(service); s != nil {
		e.touch(*s)
	}
}

// touchMoved marks services whose endpoints may be in other networks than
// before.
func (e *endpointEdit) touchMoved(x *endpointIndex, services *serviceIndex, moved func(ident.Shard) bool) {
	for id, claims := range services.claims.All() {
		for _, c := range claims {
			if moved(c.service.Key.Shard()) || c.selects() && len(x.workloads.Get(id.Namespace)) > 0 {
				e.touched[id] = struct{}{}
			}
		}
	}
}

func (e *endpointEdit) done(services *serviceIndex, networks *networkIndex, moved func(ident.Shard) bool) endpointIndex {
	x := e.from
	x.slices, x.workloads, x.selecting, x.byPair = e.slices.Done(), e.workloads.Done(), e.selecting.Done(), e.byPair.Done()
	for _, w := range e.moved {
		for _, s := range x.selecting.Get(w.Namespace) {
			if s.selects(w) {
				for _, id := range s.ids {
					e.touched[id] = struct{}{}
				}
			}
		}
	}
	e.doneUnselected(&x)
	if moved != nil {
		e.touchMoved(&x, services, moved)
	}
	if len(e.touched) == 0 {
		return x
	}
	byID, spreads, counted := x.byID.Edit(), x.spreads.Edit(), x.networks.Edit()
	identities := x.identities.Edit()
	for id := range e.touched {
		was, is := byID.Get(id), x.collect(e.settings, services, networks, id)
		e.spread(spreads, counted, id, networks.spreadOf(services.claims.Get(id), is, e.clusterLocal.has(id.Hostname) && services.byID.Get(id) != nil))
		e.targets.service(id, services.claims.Get(id), was, is)
		if equalEndpoints(was, is) {
			continue
		}
		e.changed(Input{Kind: InputEndpoints, A: id.Namespace, B: id.Hostname})
		byID.Keep(id, is, len(is) > 0)
		x.mutual += e.identify(identities, id, is)
	}
	x.byID, x.spreads, x.identities = byID.Table, spreads.Table, identities.Table
	x.networks, _ = e.counted(counted)
	x.addressed, x.listed = e.targets.addressed.Done(), e.targets.listed.Table
	return x
}

// identify replaces the identities behind a service, and returns by how much the number
// of services whose endpoints speak mutual TLS grows.
func (e *endpointEdit) identify(identities *table.Edit[ServiceID, *Identities], id ServiceID, endpoints Endpoints) int {
	was, is := identities.Get(id), identitiesOf(id, endpoints)
	if is.equal(was) {
		return 0
	}
	e.changed(Input{Kind: InputIdentities, A: id.Namespace, B: id.Hostname})
	identities.Keep(id, is, is != nil)
	more := 0
	if was != nil && was.MutualTLS {
		more--
	}
	if is != nil && is.MutualTLS {
		more++
	}
	return more
}

func (e *endpointEdit) spread(spreads *table.Edit[ServiceID, *spread], counted *table.CounterEdit, id ServiceID, s *spread) {
	was := spreads.Get(id)
	if s.equal(was) {
		return
	}
	if was != nil {
		counted.Add(-1, was.networks...)
	}
	if s != nil {
		counted.Add(1, s.networks...)
	}
	e.changed(Input{Kind: InputSpread})
	spreads.Keep(id, s, s != nil)
}

// doneUnselected reports WorkloadEntries that nothing selects, as far as that
// may have changed.
func (e *endpointEdit) doneUnselected(x *endpointIndex) {
	judge := func(w *workload) {
		if w.entry == nil {
			return
		}
		var ds []problem.Diagnostic
		if !slices.ContainsFunc(x.selecting.Get(w.Namespace), func(s *selecting) bool { return s.selects(w) }) {
			ds = []problem.Diagnostic{{
				Severity: problem.Warning, Code: "unused", Key: w.Key, Field: "spec.labels",
				Reason: "no ServiceEntry or Service of namespace " + w.Namespace + " selects these labels",
				Advice: "give it the labels of a workloadSelector or selector, or remove it",
				Effect: "it is no endpoint of any service",
			}}
		}
		e.problem(about{workloadEntryKind, "", w.Row()}, ds)
	}
	for _, moved := range e.workloads.Moved {
		for k, w := range moved {
			e.problem(about{workloadEntryKind, "", k.Row()}, nil)
			if w != nil {
				judge(*w)
			}
		}
	}
	for ns, moved := range e.selecting.Moved {
		var selectors []*selecting
		for _, list := range [][]*selecting{e.from.selecting.Get(ns), x.selecting.Get(ns)} {
			for _, s := range list {
				if _, ok := moved[s.Key]; ok {
					selectors = append(selectors, s)
				}
			}
		}
		for _, w := range x.workloads.Get(ns) {
			if slices.ContainsFunc(selectors, func(s *selecting) bool { return s.selects(w) }) {
				judge(w)
			}
		}
	}
}

// collect returns the endpoints of a service.
func (x *endpointIndex) collect(settings *settings, services *serviceIndex, networks *networkIndex, id ServiceID) Endpoints {
	claims := services.claims.Get(id)
	if len(claims) == 0 || claims[0].service.AliasOf != "" {
		return nil
	}
	winner := claims[0]
	s := services.byID.Get(id)
	all := make(Endpoints)
	for _, c := range claims {
		if !settings.joins(c, winner) || c.service.AliasOf != "" {
			continue
		}
		for _, p := range c.service.Ports {
			if _, ok := s.Port(p.Number); !ok {
				continue
			}
			list := x.selected(networks, c, p)
			if c.entry != nil {
				list = append(list, networks.inline(c, p)...)
			} else {
				list = append(list, x.sliced(networks, c, p)...)
			}
			all[p.Number] = append(all[p.Number], list...)
		}
	}
	for number, list := range all {
		if len(list) == 0 {
			delete(all, number)
			continue
		}
		all[number] = sortEndpoints(list)
	}
	if s.Resolution == DNS || s.Resolution == DNSRoundRobin {
		addHost(all, s)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// addHost makes the host the endpoint of ports of a DNS service that have none
// (SE-6).
func addHost(all Endpoints, s *Service) {
	if strings.HasPrefix(s.Hostname, "*") {
		return
	}
	for _, p := range s.Ports {
		if len(all[p.Number]) == 0 {
			all[p.Number] = []Endpoint{{
				Address: s.Hostname, Port: cmp.Or(p.Target, p.Number), Weight: 1, ClusterID: s.Key.Instance,
			}}
		}
	}
}

// sliced returns the endpoints of a port from the slices of a Service (EPS-1 to
// EPS-3). An endpoint may have a port of its own (REG-2).
func (x *endpointIndex) sliced(networks *networkIndex, c *claim, p Port) []Endpoint {
	var list []Endpoint
	for _, s := range x.slices.Get(c.service.Key) {
		common := slicePort(s.Endpoints, c.service, p)
		for _, m := range s.GetEndpoints() {
			number := cmp.Or(m.GetPorts()[p.Name], m.GetPorts()[""], common)
			if number == 0 || len(m.GetAddresses()) == 0 {
				continue
			}
			e := Endpoint{
				Address: m.GetAddresses()[0], Port: number, Labels: m.GetLabels(),
				Locality: localityOf(m.GetLocality()), Weight: max(1, m.GetWeight()),
				Health: healthOf(m.GetHealth()), ClusterID: s.Instance, Kubernetes: s.Source == kubernetesSource,
				Node: m.GetNode(), MutualTLS: m.GetMutualTls(), ServiceAccount: m.GetServiceAccount(),
				WorkloadNamespace: s.Namespace, Workload: m.GetWorkload(), Hostname: m.GetHostname(),
			}
			e.Network = networks.of(s.Shard(), m.GetNetwork(), e.Address)
			if e.Health == Unhealthy && c.registry.GetPublishNotReadyAddresses() {
				e.Health = Healthy // the Service publishes endpoints before they are ready (SVC-12)
			}
			list = append(list, e)
		}
	}
	return list
}

// slicePort returns the port on which the endpoints of a slice serve a Service's port;
// 0: they do not.
func slicePort(m *registryv1.Endpoints, s *Service, p Port) uint32 {
	for _, sp := range m.GetPorts() {
		if sp.GetName() == p.Name || sp.GetName() == "" && len(m.GetPorts()) == 1 && len(s.Ports) == 1 {
			return cmp.Or(sp.GetNumber(), p.Target, p.Number)
		}
	}
	return 0
}

func localityOf(l *registryv1.Locality) proxy.Locality {
	return proxy.Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()}
}

func healthOf(h registryv1.Health) Health {
	switch h {
	case registryv1.Health_HEALTH_UNHEALTHY:
		return Unhealthy
	case registryv1.Health_HEALTH_DRAINING:
		return Draining
	}
	return Healthy
}

// inline returns the endpoints that a ServiceEntry contains (SE-9). They need
// not be in the cluster of the ServiceEntry.
func (x *networkIndex) inline(c *claim, p Port) []Endpoint {
	if c.selects() {
		return nil // a ServiceEntry with a selector has no endpoints of its own (SE-10)
	}
	var list []Endpoint
	for _, m := range c.entry.GetEndpoints() {
		e := entryEndpoint(m, c, p)
		if !usable(c.service.Resolution, e.Address, e.Network) {
			continue
		}
		e.ClusterID, e.Kubernetes = c.service.Key.Instance, c.service.Key.Source == kubernetesSource
		if e.Network == "" && !c.service.External {
			e.Network = x.ofAddress(e.Address)
		}
		list = append(list, e)
	}
	return list
}

// selected returns the workloads that a ServiceEntry (SE-10) or a Service
// (SVC-16) selects.
func (x *endpointIndex) selected(networks *networkIndex, c *claim, p Port) []Endpoint {
	if !c.selects() {
		return nil
	}
	selector := c.selector()
	var list []Endpoint
	for _, w := range x.workloads.Get(c.service.Namespace) {
		if w.pod != nil && c.entry == nil || !matchLabels(selector, w.labels) {
			continue
		}
		var e Endpoint
		if w.entry != nil {
			e = entryEndpoint(w.entry, c, p)
		} else {
			e = podEndpoint(w.pod, c, p)
		}
		if !usable(c.service.Resolution, e.Address, e.Network) {
			continue
		}
		e.Network = networks.of(w.Shard(), e.Network, e.Address)
		e.ClusterID, e.Kubernetes = w.Instance, w.Source == kubernetesSource
		e.WorkloadNamespace, e.Workload = w.Namespace, w.Name
		list = append(list, e)
	}
	return list
}

const unixPrefix = "unix://"

// usable reports whether Envoy accepts an address for a resolution. An empty
// address is usable if the endpoint is behind a gateway of its network.
func usable(r Resolution, address, network string) bool {
	if address == "" {
		return network != "" && r == Static
	}
	if r == DNS || r == DNSRoundRobin || strings.HasPrefix(address, unixPrefix) {
		return true
	}
	_, err := netip.ParseAddr(address)
	return err == nil
}

// tlsModeLabel of a WorkloadEntry decides whether it speaks mutual TLS.
const tlsModeLabel = "security.istio.io/tlsMode"

// entryEndpoint returns a WorkloadEntry as an endpoint of a port (WE-1).
func entryEndpoint(m *networking.WorkloadEntry, c *claim, p Port) Endpoint {
	e := Endpoint{
		Address: m.GetAddress(), Port: cmp.Or(m.GetPorts()[p.Name], c.namedTarget(p, m.GetPorts()), p.Target, p.Number),
		Labels: m.GetLabels(), Locality: parseLocality(m.GetLocality()), Weight: max(1, m.GetWeight()),
		Network:   cmp.Or(m.GetNetwork(), m.GetLabels()[networkLabel]),
		MutualTLS: m.GetServiceAccount() != "", ServiceAccount: m.GetServiceAccount(),
	}
	if mode, ok := m.GetLabels()[tlsModeLabel]; ok {
		e.MutualTLS = mode == "istio"
	}
	if strings.HasPrefix(e.Address, unixPrefix) {
		e.Port = 0
	}
	return e
}

func podEndpoint(m *registryv1.Workload, c *claim, p Port) Endpoint {
	e := Endpoint{
		Port:   cmp.Or(c.namedTarget(p, m.GetPorts()), p.Target, p.Number),
		Labels: m.GetLabels(), Locality: localityOf(m.GetLocality()), Weight: 1, Health: healthOf(m.GetHealth()),
		Network: m.GetNetwork(), Node: m.GetNode(), MutualTLS: m.GetMutualTls(), ServiceAccount: m.GetServiceAccount(),
	}
	if len(m.GetAddresses()) > 0 {
		e.Address = m.GetAddresses()[0]
	}
	return e
}

// namedTarget returns the workload's port that a Service's port names as its
// target; 0: none.
func (c *claim) namedTarget(p Port, ports map[string]uint32) uint32 {
	for _, rp := range c.registry.GetPorts() {
		if rp.GetNumber() == p.Number && rp.GetTargetPortName() != "" {
			return ports[rp.GetTargetPortName()]
		}
	}
	return 0
}

func parseLocality(s string) proxy.Locality {
	parts := append(strings.SplitN(s, "/", 3), "", "")
	return proxy.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

// sortEndpoints sorts by address, port and network and keeps one of each, a
// healthy one if there is one. Networks may use the same addresses; endpoints
// without address are all kept.
func sortEndpoints(list []Endpoint) []Endpoint {
	slices.SortStableFunc(list, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Health, b.Health))
	})
	return slices.CompactFunc(list, func(a, b Endpoint) bool {
		return a.Address == b.Address && a.Port == b.Port && a.Network == b.Network && a.Address != ""
	})
}

func equalEndpoints(a, b Endpoints) bool {
	return maps.EqualFunc(a, b, func(a, b []Endpoint) bool { return slices.EqualFunc(a, b, Endpoint.equal) })
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Address == o.Address && e.Port == o.Port && e.Locality == o.Locality && e.Weight == o.Weight &&
		e.Health == o.Health && e.Network == o.Network && e.ClusterID == o.ClusterID && e.Kubernetes == o.Kubernetes && e.Node == o.Node &&
		e.MutualTLS == o.MutualTLS && e.ServiceAccount == o.ServiceAccount && e.WorkloadNamespace == o.WorkloadNamespace && e.Workload == o.Workload && e.Hostname == o.Hostname && maps.Equal(e.Labels, o.Labels)
}
