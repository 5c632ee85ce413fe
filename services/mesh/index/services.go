package index

import (
	"reflect"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// serviceIndex holds the services of the world and the namespaces that see
// them.
type serviceIndex struct {
	claims  table.Groups[ServiceID, *claim]
	byID    table.Table[ServiceID, *Service]
	byHost  table.Groups[string, *Service]
	homeOf  table.Groups[string, *homed] // by namespace
	views   table.Table[string, hostView]
	aliases aliasIndex
	scopes  table.Counter // namespaces whose view differs from the common one, by how many hosts
	homes   table.Counter // namespaces whose callers use bare names
	grpc    table.Counter // namespaces of services with a port for gRPC, by how many hosts
	// clusters of Kubernetes with Services, by how many.
	clusters table.Counter
	// near has what the Namespaces of Kubernetes say about near endpoints, if anything.
	near   table.Table[ident.Key, string]
	places table.Counter         // what services say about near endpoints, by how many
	named  table.Counter         // trust domains that a service expects in certificates, with commas
	lists  map[string][]*Service // what scopes see, sorted by host; "" is the common view
}

// homed is a service among those of its namespace.
type homed struct{ ServiceID }

// MemberKey returns a key that stands for the service: an object may have several hosts.
func (h *homed) MemberKey() ident.Key {
	return ident.Key{Kind: "host", Namespace: h.Namespace, Name: h.Hostname}
}

// MemberKey returns the key of the object.
func (s *Service) MemberKey() ident.Key { return s.Key }

// scopeOf returns the namespace if it is counted, else the common view.
func scopeOf(c table.Counter, namespace string) string {
	if c.Get(namespace) > 0 {
		return namespace
	}
	return ""
}

func (x *serviceIndex) list(scope string) []*Service {
	if list, ok := x.lists[scope]; ok {
		return list
	}
	return x.lists[""]
}

func (x *serviceIndex) find(scope, host string) *Service {
	s := x.views.Get(host).sees(scope)
	if s == nil || s.AliasOf == "" {
		return s
	}
	end := x.views.Get(x.aliases.target[host]).sees(scope)
	if end == nil || end.AliasOf != "" {
		return nil
	}
	return end
}

// serviceEdit makes one serviceIndex from another.
type serviceEdit struct {
	*transition
	from     serviceIndex
	claims   *table.GroupsEdit[ServiceID, *claim]
	clusters *table.CounterEdit
	// hosts whose services differ.
	hosts map[string]struct{}
	// near are the namespaces whose annotations about near endpoints differ.
	near map[string]struct{}
}

// next returns the index after changes of Services, ServiceEntries and Namespaces, and the
// hosts whose services differ.
func (x serviceIndex) next(t *transition, changes []change) (serviceIndex, map[string]struct{}) {
	if len(changes) == 0 {
		return x, nil
	}
	e := &serviceEdit{
		transition: t, from: x, claims: x.claims.Edit(t.compareClaims), clusters: x.clusters.Edit(), hosts: make(map[string]struct{}),
		near: make(map[string]struct{}),
	}
	for _, c := range changes {
		if c.Kind == world.NamespaceKind {
			e.namespace(c)
			continue
		}
		if c.was != nil {
			e.count(-1, c.Key)
			for _, host := range e.settings.hosts(*c.was) {
				e.claims.Drop(ServiceID{c.Namespace, host}, c.Key)
			}
		}
		if c.is != nil {
			e.count(1, c.Key)
			for _, claim := range e.settings.claims(*c.is) {
				e.claims.Put(claim.service.ServiceID, claim)
			}
		}
	}
	return e.done(), e.hosts
}

// namespace reads what a Namespace says about near endpoints (SVC-11).
func (e *serviceEdit) namespace(c change) {
	is := distributionOf(c.is)
	if is == e.from.near.Get(c.Key) {
		return
	}
	near := e.from.near.Edit()
	near.Keep(c.Key, is, is != "")
	e.from.near = near.Table
	e.near[c.Name] = struct{}{}
}

// count counts the Services of each cluster.
func (e *serviceEdit) count(n int, k ident.Key) {
	if k.Kind == world.ServiceKind && k.Source == kubernetesSource {
		e.clusters.Add(n, k.Instance)
	}
}

func (e *serviceEdit) done() serviceIndex {
	x := e.from
	x.claims = e.claims.Done()
	x.clusters, _ = e.counted(e.clusters)
	touched := make(map[ServiceID]struct{})
	said := make(map[ServiceID]string)
	for id := range e.claims.Moved {
		touched[id] = struct{}{}
		target := ""
		claims := x.claims.Get(id)
		if len(claims) > 0 {
			target = claims[0].service.AliasOf
		}
		e.problem(about{"host", id.Namespace, id.Hostname}, e.claimProblems(claims))
		if old := e.from.byID.Get(id); target != "" || old != nil && old.AliasOf != "" {
			said[id] = target
		}
	}
	if len(e.near) > 0 {
		for id := range x.claims.All() {
			if _, moved := e.near[id.Namespace]; moved {
				touched[id] = struct{}{}
			}
		}
	}
	if len(said) > 0 {
		x.aliases = e.doneAliases(&x, said, touched)
	}
	e.doneServices(&x, touched)
	e.doneHosts(&x)
	return x
}

// doneAliases returns the new aliases and marks the services whose aliases
// differ.
func (e *serviceEdit) doneAliases(x *serviceIndex, said map[ServiceID]string, touched map[ServiceID]struct{}) aliasIndex {
	next := x.aliases.with(said)
	for _, of := range []map[string][]string{x.aliases.of, next.of} {
		for host := range of {
			if slices.Equal(x.aliases.of[host], next.of[host]) {
				continue
			}
			for _, s := range x.byHost.Get(host) {
				touched[s.ServiceID] = struct{}{}
			}
		}
	}
	for _, targets := range []map[string]string{x.aliases.target, next.target} {
		for host := range targets {
			if x.aliases.target[host] != next.target[host] {
				e.changed(Input{Kind: InputHost, A: host})
			}
		}
	}
	for id := range x.aliases.said {
		e.problem(about{"alias", id.Namespace, id.Hostname}, nil)
	}
	for id := range next.said {
		if next.target[id.Hostname] != "" {
			continue
		}
		e.problem(about{"alias", id.Namespace, id.Hostname}, []problem.Diagnostic{{
			Severity: problem.Warning, Code: "invalid", Key: x.claims.Get(id)[0].service.Key, Field: "spec.externalName",
			Reason: "host " + id.Hostname + " is an alias of itself, by way of " + next.said[id],
			Advice: "make one of the names a service",
			Effect: "no proxy knows the name",
		}})
	}
	return next
}

// doneServices makes the marked services.
func (e *serviceEdit) doneServices(x *serviceIndex, touched map[ServiceID]struct{}) {
	byID := x.byID.Edit()
	byHost := x.byHost.Edit(e.compareServices)
	homeOf := x.homeOf.Edit(func(a, b *homed) int { return strings.Compare(a.Hostname, b.Hostname) })
	named, places := x.named.Edit(), x.places.Edit()
	for id := range touched {
		old := byID.Get(id)
		var s *Service
		if claims := x.claims.Get(id); len(claims) > 0 {
			s = e.mergeClaims(claims, x.aliases.of[id.Hostname])
			if s.Kubernetes && s.Distribution == "" {
				at := ident.Key{Source: s.Key.Source, Instance: s.Key.Instance, Kind: world.NamespaceKind, Name: s.Namespace}
				s.Distribution = x.near.Get(at)
			}
		}
		if reflect.DeepEqual(old, s) {
			continue
		}
		e.changed(Input{Kind: InputService, A: id.Namespace, B: id.Hostname})
		e.changed(Input{Kind: InputServicesOf, A: id.Namespace})
		e.changed(Input{Kind: InputServicesOf, A: exportAll})
		if (old == nil) != (s == nil) {
			homeOf.Keep(id.Namespace, &homed{id}, s != nil)
		}
		if old != nil {
			byHost.Drop(id.Hostname, old.Key)
			countNamed(named, -1, old.SubjectAltNames, old.Identities)
			places.Add(-1, old.distributions()...)
		}
		if s == nil {
			byID.Remove(id)
			continue
		}
		byID.Set(id, s)
		byHost.Put(id.Hostname, s)
		countNamed(named, 1, s.SubjectAltNames, s.Identities)
		places.Add(1, s.distributions()...)
	}
	x.byID, x.byHost, x.homeOf = byID.Table, byHost.Done(), homeOf.Done()
	x.named = e.doneNamed(named)
	x.places, _ = e.counted(places)
	for host := range byHost.Moved {
		e.hosts[host] = struct{}{}
	}
}

// doneHosts recomputes the views of the hosts that changed.
func (e *serviceEdit) doneHosts(x *serviceIndex) {
	views := x.views.Edit()
	scopes, homes, grpc := x.scopes.Edit(), x.homes.Edit(), x.grpc.Edit()
	for host := range e.hosts {
		was, is := views.Get(host), viewHost(x.byHost.Get(host))
		scopes.Add(-1, was.views()...)
		scopes.Add(1, is.views()...)
		homes.Add(-1, was.homes(e.domainSuffix)...)
		homes.Add(1, is.homes(e.domainSuffix)...)
		grpc.Add(-1, was.grpc()...)
		grpc.Add(1, is.grpc()...)
		views.Keep(host, is, len(is.services) > 0)
		e.problem(about{"view", "", host}, e.viewProblems(is))
		e.changed(Input{Kind: InputHost, A: host})
	}
	x.views = views.Table
	var moved []string
	x.homes, _ = e.counted(homes)
	x.grpc, _ = e.counted(grpc)
	x.scopes, moved = e.counted(scopes)
	e.doneLists(x, moved)
}

// doneLists makes the lists that differ. Moved are the scopes that came or left.
func (e *serviceEdit) doneLists(x *serviceIndex, moved []string) {
	lists := table.CloneMap(x.lists)
	e.doneList(x, lists, "")
	for scope := range x.lists {
		if scope != "" && !slices.Contains(moved, scope) {
			e.doneList(x, lists, scope)
		}
	}
	for _, scope := range moved {
		e.changed(Input{Kind: InputServices, A: scope})
		delete(lists, scope)
		if x.scopes.Get(scope) > 0 {
			lists[scope] = lists[""]
			e.doneList(x, lists, scope)
		}
	}
	x.lists = lists
}

// doneList makes the list of one scope if it differs.
func (e *serviceEdit) doneList(x *serviceIndex, lists map[string][]*Service, scope string) {
	moved := make(map[string]*Service)
	_, had := x.lists[scope]
	for host := range e.hosts {
		is := x.views.Get(host).sees(scope)
		was := e.from.views.Get(host).sees(scope)
		if !had && scope != "" {
			was = x.views.Get(host).sees("") // a new scope's list starts from the common one
		}
		if was != is {
			moved[host] = is
		}
	}
	if len(moved) == 0 {
		return
	}
	e.changed(Input{Kind: InputServices, A: scope})
	lists[scope] = editList(lists[scope], moved)
	if scope == "" && len(lists[scope]) == 0 {
		delete(lists, scope) // as if there had been no service
	}
}
