package index

import (
	"reflect"
	"slices"

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
	views   table.Table[string, *hostView]
	aliases *aliasIndex
	scopes  table.Counter // namespaces whose view differs from the common one, by how many hosts
	homes   table.Counter // namespaces whose services have bare names
	// clusters of Kubernetes with Services, by how many.
	clusters table.Counter
	lists    map[string][]*Service // what scopes see, sorted by host; "" is the common view
}

func hashServiceID(id ServiceID) uint64 { return table.HashStrings(id.Namespace, id.Hostname) }
func hashString(s string) uint64        { return table.HashStrings(s) }

// MemberKey returns the key of the object.
func (s *Service) MemberKey() ident.Key { return s.Key }

func newServiceIndex() serviceIndex {
	return serviceIndex{
		claims:   table.NewGroups[ServiceID, *claim](hashServiceID),
		byID:     table.New[ServiceID, *Service](hashServiceID),
		byHost:   table.NewGroups[string, *Service](hashString),
		views:    table.New[string, *hostView](hashString),
		aliases:  &aliasIndex{said: make(map[ServiceID]string)},
		scopes:   table.NewCounter(),
		homes:    table.NewCounter(),
		clusters: table.NewCounter(),
		lists:    map[string][]*Service{"": nil},
	}
}

// scope returns the namespace if it is counted, else the common view.
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
	view := x.views.Get(host)
	s := view.sees(scope)
	if s == nil || s.AliasOf == "" {
		return s
	}
	end := x.views.Get(x.aliases.end(host)).sees(scope)
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
}

func (x serviceIndex) edit(t *transition) *serviceEdit {
	return &serviceEdit{transition: t, from: x, claims: x.claims.Edit(t.compareClaims), clusters: x.clusters.Edit(), hosts: make(map[string]struct{})}
}

// change applies a change of an object; either may be nil.
func (e *serviceEdit) change(was, is *world.Object) {
	if was != nil {
		e.count(-1, was.Key)
		for _, host := range e.settings.hosts(*was) {
			e.claims.Drop(ServiceID{was.Key.Namespace, host}, was.Key)
		}
	}
	if is != nil {
		e.count(1, is.Key)
		for _, c := range e.settings.claims(*is) {
			e.claims.Put(c.service.ServiceID, c)
		}
	}
}

// count counts the Services of each cluster.
func (e *serviceEdit) count(n int, k ident.Key) {
	if k.Kind == world.ServiceKind && k.Source == kubernetesSource {
		e.clusters.Add(n, k.Instance)
	}
}

func (e *serviceEdit) done() serviceIndex {
	if len(e.claims.Moved) == 0 {
		return e.from
	}
	x := e.from
	x.claims = e.claims.Done()
	var came, left []string
	x.clusters, came, left = e.clusters.Done()
	e.reclassify(len(came)+len(left) > 0)
	touched := make(map[ServiceID]struct{})
	said := make(map[ServiceID]string)
	for id := range e.claims.Moved {
		touched[id] = struct{}{}
		target := ""
		claims := x.claims.Get(id)
		if len(claims) > 0 {
			target = claims[0].service.AliasOf
			e.problem(about{"host", id.Namespace, id.Hostname}, e.claimProblems(claims))
		} else {
			e.problem(about{"host", id.Namespace, id.Hostname}, nil)
		}
		if old := e.from.byID.Get(id); target != "" || old != nil && old.AliasOf != "" {
			said[id] = target
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
func (e *serviceEdit) doneAliases(x *serviceIndex, said map[ServiceID]string, touched map[ServiceID]struct{}) *aliasIndex {
	next := x.aliases.with(said)
	for _, host := range x.aliases.changed(next) {
		for _, s := range x.byHost.Get(host) {
			touched[s.ServiceID] = struct{}{}
		}
	}
	for id := range said {
		e.problem(about{"alias", id.Namespace, id.Hostname}, nil)
	}
	for id := range x.aliases.said {
		e.problem(about{"alias", id.Namespace, id.Hostname}, nil)
	}
	for id := range next.said {
		if !next.looping(id.Hostname) {
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
	for id := range touched {
		old := byID.Get(id)
		var s *Service
		if claims := x.claims.Get(id); len(claims) > 0 {
			s = mergeClaims(claims, x.aliases.of[id.Hostname])
		}
		if reflect.DeepEqual(old, s) {
			continue
		}
		e.changed(Input{Kind: InputService, A: id.Namespace, B: id.Hostname})
		if old != nil {
			byHost.Drop(id.Hostname, old.Key)
		}
		if s == nil {
			byID.Remove(id)
			continue
		}
		byID.Set(id, s)
		byHost.Put(id.Hostname, s)
	}
	x.byID, x.byHost = byID.Table, byHost.Done()
	for host := range byHost.Moved {
		e.hosts[host] = struct{}{}
	}
}

// doneHosts recomputes the views of the hosts that changed.
func (e *serviceEdit) doneHosts(x *serviceIndex) {
	views := x.views.Edit()
	scopes, homes := x.scopes.Edit(), x.homes.Edit()
	for host := range e.hosts {
		was, is := views.Get(host), viewHost(x.byHost.Get(host))
		scopes.Add(-1, was.views()...)
		scopes.Add(1, is.views()...)
		homes.Add(-1, was.homes()...)
		homes.Add(1, is.homes()...)
		keep(views, host, is, is != nil)
		e.problem(about{"view", "", host}, e.viewProblems(is))
	}
	x.views = views.Table
	var came, left, settled, deserted []string
	x.scopes, came, left = scopes.Done()
	x.homes, settled, deserted = homes.Done()
	e.reclassify(len(came)+len(left)+len(settled)+len(deserted) > 0)
	e.doneLists(x, came, left)
}

// doneLists makes the lists that differ.
func (e *serviceEdit) doneLists(x *serviceIndex, came, left []string) {
	lists := make(map[string][]*Service, len(x.lists)+len(came))
	for scope, list := range x.lists {
		if !slices.Contains(left, scope) {
			lists[scope] = list
		}
	}
	for _, scope := range left {
		e.changed(Input{Kind: InputServices, A: scope})
	}
	e.doneList(x, lists, "")
	for scope := range x.lists {
		if _, ok := lists[scope]; ok && scope != "" {
			e.doneList(x, lists, scope)
		}
	}
	for _, scope := range came {
		lists[scope] = lists[""]
		e.changed(Input{Kind: InputServices, A: scope})
		e.doneList(x, lists, scope)
	}
	x.lists = lists
}

// doneList makes the list of one scope if it differs.
func (e *serviceEdit) doneList(x *serviceIndex, lists map[string][]*Service, scope string) {
	moved := make(map[string]*Service)
	_, had := e.from.lists[scope]
	for host := range e.hosts {
		is := x.views.Get(host).sees(scope)
		was := e.from.views.Get(host).sees(scope)
		if !had {
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
}
