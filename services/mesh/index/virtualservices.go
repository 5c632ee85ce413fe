package index

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
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
	// seen holds all VirtualServices that are visible in a scope, by gateway. only
	// holds the public ones under scope "" and, under a namespace, the others that
	// are visible in it. In both, the VirtualService that wins a host comes first.
	seen    table.Table[seenAt, []*VirtualServiceHead]
	only    table.Groups[seenAt, *VirtualServiceHead]
	scopes  table.Counter                                           // namespaces that see more than the common view
	hosts   table.Groups[string, *virtualService]                   // those of sidecars, by host
	homeOf  table.Groups[string, *virtualService]                   // those of sidecars, by namespace
	sources [ident.ResourceTypes]table.Groups[string, *sourceMatch] // of LDS and RDS, by text
	large   int                                                     // how many have an expression that a stock Envoy refuses
}

// seenAt is a gateway in a scope.
type seenAt struct{ scope, gateway string }

type virtualService struct {
	*VirtualServiceHead
	spec     *networking.VirtualService // with full names
	exportTo Visibility
	matches  [ident.ResourceTypes][]*sourceMatch // of LDS and RDS
	large    bool                                // a stock Envoy refuses one of its expressions
}

// MemberKey returns the key of the object.
func (h *VirtualServiceHead) MemberKey() ident.Key { return h.Key }

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
		v.spec.Hosts[i] = hostname.Full(host, ns, s.domainSuffix)
	}
	v.Hosts = v.spec.Hosts
	v.Gateways = gatewayNames(m.GetGateways(), ns)
	if len(v.Gateways) == 0 {
		v.Gateways = []string{MeshGateway}
	}
	v.Gateways = sortUnique(v.Gateways)
	v.spec.Gateways = v.Gateways
	for _, d := range destinations(v.spec) {
		d.Host = hostname.Full(d.GetHost(), ns, s.domainSuffix)
		v.Destinations = append(v.Destinations, d.GetHost())
	}
	v.Destinations = sortUnique(v.Destinations)
	v.readMatches(ns)
	v.large = hasLargeRegex(v.spec)
	return v
}

// readMatches completes the gateways' names in matches and collects their
// conditions on the caller.
func (v *virtualService) readMatches(namespace string) {
	read := func(t ident.ResourceType, gateways *[]string, labels map[string]string, from string) {
		*gateways = gatewayNames(*gateways, namespace)
		if text := SourceSelector(labels, from); text != "" {
			v.matches[t] = append(v.matches[t], &sourceMatch{v.Key, labels, from, text})
			v.Sources = append(v.Sources, text)
		}
	}
	for _, r := range v.spec.GetHttp() {
		v.Delegates = v.Delegates || r.GetDelegate() != nil
		for _, m := range r.GetMatch() {
			read(ident.RDS, &m.Gateways, m.GetSourceLabels(), m.GetSourceNamespace())
		}
	}
	for _, r := range v.spec.GetTls() {
		for _, m := range r.GetMatch() {
			read(ident.LDS, &m.Gateways, m.GetSourceLabels(), m.GetSourceNamespace())
		}
	}
	for _, r := range v.spec.GetTcp() {
		for _, m := range r.GetMatch() {
			read(ident.LDS, &m.Gateways, m.GetSourceLabels(), m.GetSourceNamespace())
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
		case strings.Contains(n, "."): // the form of a host: name.namespace.svc.cluster.local
			parts := strings.Split(n, ".")
			n = parts[1] + "/" + parts[0]
		default:
			n = namespace + "/" + n
		}
		full = append(full, n)
	}
	return full
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
	homeOf  *table.GroupsEdit[string, *virtualService]
	scopes  *table.CounterEdit
	sources [ident.ResourceTypes]*table.GroupsEdit[string, *sourceMatch]
	large   int
}

// next returns the index after changes of VirtualServices in w.
func (x virtualServiceIndex) next(t *transition, w *world.World, changes []change) virtualServiceIndex {
	if len(changes) == 0 {
		return x
	}
	e := &virtualServiceEdit{
		transition: t, from: x,
		byName: x.byName.Edit(),
		only:   x.only.Edit(t.compareHeads),
		hosts: x.hosts.Edit(func(a, b *virtualService) int {
			return t.compareHeads(a.VirtualServiceHead, b.VirtualServiceHead)
		}),
		homeOf: x.homeOf.Edit(func(a, b *virtualService) int {
			return t.compareHeads(a.VirtualServiceHead, b.VirtualServiceHead)
		}),
		scopes: x.scopes.Edit(),
		large:  x.large,
	}
	for t := range e.sources {
		e.sources[t] = x.sources[t].Edit(func(a, b *sourceMatch) int { return world.CompareKeys(a.Key, b.Key) })
	}
	for _, c := range changes {
		e.change(world.Name{Namespace: c.Namespace, Name: c.Name}, w.Winner(c.Key))
	}
	return e.done()
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
	if was != nil && v != nil && reflect.DeepEqual(was.VirtualServiceHead, v.VirtualServiceHead) {
		v.VirtualServiceHead = was.VirtualServiceHead // so that it stays in the lists
	}
	if was == nil || v == nil || !proto.Equal(was.spec, v.spec) {
		e.changed(Input{Kind: InputVirtualService, A: n.Namespace, B: n.Name})
	}
	e.byName.Keep(n, v, v != nil)
	if was != nil && was.large {
		e.large--
	}
	if v != nil && v.large {
		e.large++
	}
	listed := was != nil && v != nil && was.VirtualServiceHead == v.VirtualServiceHead && slices.Equal(was.exportTo, v.exportTo)
	for version, after := range versions(was, v) {
		for t, matches := range version.matches {
			for _, m := range matches {
				e.sources[t].Keep(m.text, m, after)
			}
		}
		if !listed {
			e.list(version, after)
		}
	}
}

// list puts v into the lists, or takes it out.
func (e *virtualServiceEdit) list(v *virtualService, in bool) {
	for _, place := range v.places() {
		switch {
		case place == "":
		case in:
			e.scopes.Add(1, place)
		default:
			e.scopes.Add(-1, place)
		}
		for _, g := range v.Gateways {
			e.only.Keep(seenAt{place, g}, v.VirtualServiceHead, in)
		}
	}
	for _, host := range v.sidecarHosts() {
		e.hosts.Keep(host, v, in)
	}
	if len(v.sidecarHosts()) > 0 {
		e.homeOf.Keep(v.Key.Namespace, v, in)
	}
}

func (e *virtualServiceEdit) done() virtualServiceIndex {
	x := e.from
	x.byName = e.byName.Table
	e.doneSources(&x)
	x.large = e.large
	e.reclassify((e.from.large == 0) != (x.large == 0))
	x.only, x.hosts, x.homeOf = e.only.Done(), e.hosts.Done(), e.homeOf.Done()
	for namespace := range e.homeOf.Moved {
		e.changed(Input{Kind: InputVirtualServicesOf, A: namespace})
		e.changed(Input{Kind: InputVirtualServicesOf, A: exportAll})
	}
	var moved []string
	x.scopes, moved = e.counted(e.scopes)
	e.doneSeen(&x, moved)
	for host := range e.hosts.Moved {
		e.problem(about{virtualServiceKind, "", host}, routeProblems(host, x.hosts.Get(host)))
	}
	return x
}

// doneSources finds the conditions in use.
func (e *virtualServiceEdit) doneSources(x *virtualServiceIndex) {
	for t, edit := range e.sources {
		x.sources[t] = edit.Done()
		for text := range edit.Moved {
			e.reclassify((len(e.from.sources[t].Get(text)) == 0) != (len(x.sources[t].Get(text)) == 0))
		}
	}
}

// doneSeen makes the lists of scopes that differ. Moved are the scopes that came
// or left.
func (e *virtualServiceEdit) doneSeen(x *virtualServiceIndex, moved []string) {
	remake := make(map[seenAt]struct{})
	for at := range e.only.Moved {
		remake[at] = struct{}{}
		if at.scope == "" {
			for ns := range x.scopes.All() {
				remake[seenAt{ns, at.gateway}] = struct{}{}
			}
		}
	}
	if len(moved) > 0 {
		gateways := make(map[string]struct{}) // few; in seen each is repeated for every scope
		for at := range x.seen.All() {
			gateways[at.gateway] = struct{}{}
		}
		for gateway := range gateways {
			for _, ns := range moved {
				remake[seenAt{ns, gateway}] = struct{}{}
			}
		}
	}
	seen := x.seen.Edit()
	for at := range remake {
		var list []*VirtualServiceHead
		switch {
		case at.scope == "":
			list = x.only.Get(at)
		case x.scopes.Get(at.scope) > 0:
			list = e.mergeHeads(x.only.Get(at), x.only.Get(seenAt{"", at.gateway}))
		}
		seen.Keep(at, list, len(list) > 0)
		e.changed(Input{Kind: InputVirtualServices, A: at.scope})
	}
	x.seen = seen.Table
	for _, ns := range moved {
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
