package index

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

const (
	virtualServiceKind = "VirtualService"
	// MeshGateway is the gateway that means all sidecars (VS-2).
	MeshGateway = "mesh"
)

// virtualServiceIndex holds the VirtualServices of the world and the namespaces
// that see them.
type virtualServiceIndex struct {
	byName table.Table[world.Name, *virtualService]
	// seen are the VirtualServices of a gateway in a scope, the winner first; only
	// are those that a namespace sees besides the common view.
	seen    table.Groups[seenAt, *VirtualServiceHead]
	only    table.Groups[seenAt, *VirtualServiceHead]
	scopes  table.Counter                         // namespaces that see more than the common view
	hosts   table.Groups[string, *virtualService] // those of sidecars, by host
	sources [ident.ResourceTypes]table.Counter    // texts of SourceSelector, by how many matches have them
	matches []*sourceMatch                        // counted there
}

// seenAt is a gateway in a scope.
type seenAt struct{ scope, gateway string }

type virtualService struct {
	*VirtualServiceHead
	spec     *networking.VirtualService // with full names
	exportTo Visibility
	matches  [ident.ResourceTypes][]*sourceMatch // of LDS and RDS
}

// MemberKey returns the key of the object.
func (h *VirtualServiceHead) MemberKey() ident.Key { return h.Key }

func newVirtualServiceIndex() virtualServiceIndex {
	hash := func(s seenAt) uint64 { return table.HashStrings(s.scope, s.gateway) }
	x := virtualServiceIndex{
		byName: table.New[world.Name, *virtualService](world.HashName),
		seen:   table.NewGroups[seenAt, *VirtualServiceHead](hash),
		only:   table.NewGroups[seenAt, *VirtualServiceHead](hash),
		scopes: table.NewCounter(),
		hosts:  table.NewGroups[string, *virtualService](hashString),
	}
	for t := range x.sources {
		x.sources[t] = table.NewCounter()
	}
	return x
}

func (x *virtualServiceIndex) list(scope, gateway string) []*VirtualServiceHead {
	return x.seen.Get(seenAt{scopeOf(x.scopes, scope), gateway})
}

// spec returns the content of a VirtualService, or nil.
func (x *virtualServiceIndex) spec(k ident.Key) *networking.VirtualService {
	if v := x.byName.Get(world.Name{Namespace: k.Namespace, Name: k.Name}); v != nil {
		return v.spec
	}
	return nil
}

// newVirtualService reads a VirtualService: hosts in full (VS-1), gateways
// (VS-2), visibility (VS-3).
func (s *settings) newVirtualService(o world.Object, m *networking.VirtualService) *virtualService {
	v := &virtualService{
		VirtualServiceHead: &VirtualServiceHead{
			Key: o.Key, Created: o.Created,
			HTTP: len(m.GetHttp()) > 0, TLS: len(m.GetTls()) > 0, TCP: len(m.GetTcp()) > 0,
		},
		spec:     proto.Clone(m).(*networking.VirtualService),
		exportTo: visibilityOf(m.GetExportTo(), s.virtualExport, o.Key.Namespace),
	}
	ns := o.Key.Namespace
	for i, host := range m.GetHosts() {
		v.spec.Hosts[i] = FQDN(host, ns, s.domainSuffix)
	}
	v.Hosts = v.spec.Hosts
	v.Gateways = gatewayNames(m.GetGateways(), ns)
	if len(v.Gateways) == 0 {
		v.Gateways = []string{MeshGateway}
	}
	v.Gateways = sortUnique(v.Gateways)
	v.spec.Gateways = v.Gateways
	for _, d := range destinations(v.spec) {
		d.Host = FQDN(d.GetHost(), ns, s.domainSuffix)
		v.Destinations = append(v.Destinations, d.GetHost())
	}
	v.Destinations = sortUnique(v.Destinations)
	v.readMatches(ns)
	return v
}

// readMatches completes the gateways' names in matches and collects their
// conditions on the caller.
func (v *virtualService) readMatches(namespace string) {
	sources := func(t ident.ResourceType, labels map[string]string, from string) {
		if m := newSourceMatch(labels, from); m.text != "" {
			v.matches[t] = append(v.matches[t], m)
			v.Sources = append(v.Sources, m.text)
		}
	}
	for _, r := range v.spec.GetHttp() {
		v.Delegates = v.Delegates || r.GetDelegate() != nil
		for _, m := range r.GetMatch() {
			m.Gateways = gatewayNames(m.GetGateways(), namespace)
			sources(ident.RDS, m.GetSourceLabels(), m.GetSourceNamespace())
		}
	}
	for _, r := range v.spec.GetTls() {
		for _, m := range r.GetMatch() {
			m.Gateways = gatewayNames(m.GetGateways(), namespace)
			sources(ident.LDS, m.GetSourceLabels(), m.GetSourceNamespace())
		}
	}
	for _, r := range v.spec.GetTcp() {
		for _, m := range r.GetMatch() {
			m.Gateways = gatewayNames(m.GetGateways(), namespace)
			sources(ident.LDS, m.GetSourceLabels(), m.GetSourceNamespace())
		}
	}
	v.Sources = sortUnique(v.Sources)
}

// gatewayNames returns names of gateways in full: "mesh", or namespace/name.
func gatewayNames(names []string, namespace string) []string {
	var full []string
	for _, n := range names {
		ns, rest, qualified := strings.Cut(n, "/")
		switch {
		case n == MeshGateway:
		case qualified && ns == ".":
			n = namespace + "/" + rest
		case qualified:
		default:
			n = gatewayByHost(n, namespace)
		}
		full = append(full, n)
	}
	return full
}

// gatewayByHost reads a gateway's name without a slash, which may have the form
// of a host: name.namespace.svc.cluster.local.
func gatewayByHost(n, namespace string) string {
	if parts := strings.Split(n, "."); len(parts) > 1 {
		return parts[1] + "/" + parts[0]
	}
	return namespace + "/" + n
}

// destinations returns the destinations in m.
func destinations(m *networking.VirtualService) []*networking.Destination {
	var all []*networking.Destination
	for _, r := range m.GetHttp() {
		for _, d := range r.GetRoute() {
			all = append(all, d.GetDestination())
		}
		all = append(all, r.GetMirror())
		for _, d := range r.GetMirrors() {
			all = append(all, d.GetDestination())
		}
	}
	for _, r := range m.GetTls() {
		for _, d := range r.GetRoute() {
			all = append(all, d.GetDestination())
		}
	}
	for _, r := range m.GetTcp() {
		for _, d := range r.GetRoute() {
			all = append(all, d.GetDestination())
		}
	}
	return slices.DeleteFunc(all, func(d *networking.Destination) bool { return d == nil })
}

// places returns the scopes that see v: "" for the common view, else
// namespaces.
func (v *virtualService) places() []string {
	if len(v.Hosts) == 0 {
		return nil // only VirtualServices delegate to it (VS-4)
	}
	if v.exportTo.Public() {
		return []string{""}
	}
	return v.exportTo.namespaces(v.Key.Namespace)
}

// sidecarHosts returns the hosts whose routes v decides for sidecars.
func (v *virtualService) sidecarHosts() []string {
	if !slices.Contains(v.Gateways, MeshGateway) {
		return nil
	}
	return v.Hosts
}

// virtualServiceEdit makes one virtualServiceIndex from another.
type virtualServiceEdit struct {
	*transition
	from    virtualServiceIndex
	byName  *table.Edit[world.Name, *virtualService]
	only    *table.GroupsEdit[seenAt, *VirtualServiceHead]
	hosts   *table.GroupsEdit[string, *virtualService]
	scopes  *table.CounterEdit
	sources [ident.ResourceTypes]*table.CounterEdit
	matches map[string]*sourceMatch // may be new
	touched bool
}

func (x virtualServiceIndex) edit(t *transition) *virtualServiceEdit {
	e := &virtualServiceEdit{
		transition: t, from: x,
		byName: x.byName.Edit(),
		only:   x.only.Edit(t.compareHeads),
		hosts: x.hosts.Edit(func(a, b *virtualService) int {
			return t.compareHeads(a.VirtualServiceHead, b.VirtualServiceHead)
		}),
		scopes:  x.scopes.Edit(),
		matches: make(map[string]*sourceMatch),
	}
	for t := range e.sources {
		e.sources[t] = x.sources[t].Edit()
	}
	return e
}

func (s *settings) compareHeads(a, b *VirtualServiceHead) int {
	return world.Wins(s.priority, a.Key, a.Created, b.Key, b.Created)
}

// change applies the new VirtualService of a key; nil: it is gone.
func (e *virtualServiceEdit) change(n world.Name, is *world.Object) {
	was := e.byName.Get(n)
	var v *virtualService
	if is != nil {
		if m, ok := is.Message.(*networking.VirtualService); ok {
			v = e.newVirtualService(*is, m)
		}
	}
	if was == nil && v == nil {
		return
	}
	e.touched = true
	if was != nil && v != nil && reflect.DeepEqual(was.VirtualServiceHead, v.VirtualServiceHead) {
		v.VirtualServiceHead = was.VirtualServiceHead // so that it stays in the lists
	}
	if was == nil || v == nil || !proto.Equal(was.spec, v.spec) {
		e.changed(Input{Kind: InputVirtualService, A: n.Namespace, B: n.Name})
	}
	e.count(was, -1)
	e.count(v, 1)
	keep(e.byName, n, v, v != nil)
	if was != nil && v != nil && was.VirtualServiceHead == v.VirtualServiceHead && slices.Equal(was.exportTo, v.exportTo) {
		return
	}
	if was != nil {
		for _, place := range was.places() {
			for _, g := range was.Gateways {
				e.only.Drop(seenAt{place, g}, was.Key)
			}
		}
		for _, host := range was.sidecarHosts() {
			e.hosts.Drop(host, was.Key)
		}
	}
	if v != nil {
		for _, place := range v.places() {
			for _, g := range v.Gateways {
				e.only.Put(seenAt{place, g}, v.VirtualServiceHead)
			}
		}
		for _, host := range v.sidecarHosts() {
			e.hosts.Put(host, v)
		}
	}
}

// count counts the conditions that tell proxies apart.
func (e *virtualServiceEdit) count(v *virtualService, n int) {
	if v == nil {
		return
	}
	for _, place := range v.places() {
		if place != "" {
			e.scopes.Add(n, place)
		}
	}
	for t, matches := range v.matches {
		for _, m := range matches {
			e.sources[t].Add(n, m.text)
			e.matches[m.text] = m
		}
	}
}

func (e *virtualServiceEdit) done() virtualServiceIndex {
	if !e.touched {
		return e.from
	}
	x := e.from
	x.byName = e.byName.Table
	e.doneSources(&x)
	x.only, x.hosts = e.only.Done(), e.hosts.Done()
	var came, left []string
	x.scopes, came, left = e.scopes.Done()
	e.reclassify(len(came)+len(left) > 0)
	e.doneSeen(&x, came, left)
	for host := range e.hosts.Moved {
		e.problem(about{virtualServiceKind, "", host}, routeProblems(host, x.hosts.Get(host)))
	}
	return x
}

// doneSources finds the conditions in use.
func (e *virtualServiceEdit) doneSources(x *virtualServiceIndex) {
	differ := false
	for t := range x.sources {
		var came, left []string
		x.sources[t], came, left = e.sources[t].Done()
		differ = differ || len(came)+len(left) > 0
	}
	if !differ {
		return
	}
	e.reclassify(true)
	for _, m := range x.matches {
		e.matches[m.text] = m
	}
	x.matches = nil
	for text, m := range e.matches {
		if x.sources[ident.LDS].Get(text) > 0 || x.sources[ident.RDS].Get(text) > 0 {
			x.matches = append(x.matches, m)
		}
	}
	slices.SortFunc(x.matches, func(a, b *sourceMatch) int { return strings.Compare(a.text, b.text) })
}

// doneSeen makes the lists of scopes that differ.
func (e *virtualServiceEdit) doneSeen(x *virtualServiceIndex, came, left []string) {
	remake := make(map[seenAt]struct{})
	for at := range e.only.Moved {
		remake[at] = struct{}{}
		if at.scope == "" {
			for ns := range x.scopes.All() {
				remake[seenAt{ns, at.gateway}] = struct{}{}
			}
		}
	}
	if len(came)+len(left) > 0 {
		for at := range x.seen.All() {
			if at.scope == "" {
				for _, ns := range came {
					remake[seenAt{ns, at.gateway}] = struct{}{}
				}
			} else if slices.Contains(left, at.scope) {
				remake[at] = struct{}{}
			}
		}
	}
	seen := x.seen.Table.Edit()
	for at := range remake {
		var list []*VirtualServiceHead
		switch {
		case at.scope == "":
			list = x.only.Get(at)
		case x.scopes.Get(at.scope) > 0:
			list = e.mergeHeads(x.only.Get(at), x.only.Get(seenAt{"", at.gateway}))
		}
		keep(seen, at, list, len(list) > 0)
		e.changed(Input{Kind: InputVirtualServices, A: at.scope})
	}
	x.seen = table.Groups[seenAt, *VirtualServiceHead]{Table: seen.Table}
	for _, ns := range append(came, left...) {
		e.changed(Input{Kind: InputVirtualServices, A: ns})
	}
}

// mergeHeads merges two ordered lists.
func (s *settings) mergeHeads(a, b []*VirtualServiceHead) []*VirtualServiceHead {
	list := make([]*VirtualServiceHead, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if s.compareHeads(a[0], b[0]) < 0 {
			list, a = append(list, a[0]), a[1:]
		} else {
			list, b = append(list, b[0]), b[1:]
		}
	}
	return append(append(list, a...), b...)
}

// routeProblems reports VirtualServices of a host that do not count for
// sidecars because those see an older one (VS-5).
func routeProblems(host string, list []*virtualService) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for i, v := range list {
		meets := func(o *virtualService) bool { return o.exportTo.meets(o.Key.Namespace, v.exportTo, v.Key.Namespace) }
		if j := slices.IndexFunc(list[:i], meets); j >= 0 {
			ds = append(ds, problem.Diagnostic{
				Severity: problem.Warning, Code: "conflict", Key: v.Key, Field: "spec.hosts",
				Reason: "the routes of host " + host + " for sidecars are already defined by " + list[j].Key.String(),
				Advice: "put the routes into one VirtualService, or export them to different namespaces",
				Effect: "sidecars that see both use the other one for this host",
			})
		}
	}
	return ds
}
