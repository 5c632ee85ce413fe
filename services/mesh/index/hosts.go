package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/problem"
)

// hostView is which service each namespace sees under a host (VIS-3). It is
// immutable; nil is that of a host that nobody claims.
type hostView struct {
	services []*Service // one a namespace, the one that wins first
	public   *Service   // what everybody sees; nil: nothing
	// own is what the namespaces see that see something else: their own
	// service, or one that is exported to them alone.
	own map[string]*Service
}

func viewHost(services []*Service) *hostView {
	if len(services) == 0 {
		return nil
	}
	v := &hostView{services: services}
	var interested []string
	for _, s := range services {
		if s.ExportTo.Public() {
			if v.public == nil {
				v.public = s
			}
			interested = append(interested, s.Namespace)
		}
		interested = append(interested, s.ExportTo.namespaces(s.Namespace)...)
	}
	for _, ns := range interested {
		if s := seenFrom(services, ns); s != v.public {
			if v.own == nil {
				v.own = make(map[string]*Service)
			}
			v.own[ns] = s
		}
	}
	return v
}

// seenFrom is the service that a namespace sees: its own, else the first that
// is shown to it.
func seenFrom(services []*Service, namespace string) *Service {
	var first *Service
	for _, s := range services {
		if !s.ExportTo.Shows(s.Namespace, namespace) {
			continue
		}
		if s.Namespace == namespace {
			return s
		}
		if first == nil {
			first = s
		}
	}
	return first
}

// sees is what a namespace sees; "" is everybody.
func (v *hostView) sees(namespace string) *Service {
	if v == nil {
		return nil
	}
	if s, ok := v.own[namespace]; ok {
		return s
	}
	return v.public
}

// views is the namespaces that see something else than everybody.
func (v *hostView) views() []string {
	if v == nil {
		return nil
	}
	names := make([]string, 0, len(v.own))
	for ns := range v.own {
		names = append(names, ns)
	}
	return names
}

// homes is the namespaces that see a service of a registry of their own, which
// can be called there by a bare name.
func (v *hostView) homes() []string {
	if v == nil {
		return nil
	}
	var names []string
	for _, s := range v.services {
		if s.Kubernetes && s.AliasOf == "" && v.sees(s.Namespace) == s {
			names = append(names, s.Namespace)
		}
	}
	return names
}

// namespaces is where the services of the host are.
func (v *hostView) namespaces() []string {
	if v == nil {
		return nil
	}
	names := make([]string, len(v.services))
	for i, s := range v.services {
		names[i] = s.Namespace
	}
	return names
}

// viewProblems says which services everybody might see and only some do.
func (s *settings) viewProblems(v *hostView) []problem.Diagnostic {
	if v == nil {
		return nil
	}
	var ds []problem.Diagnostic
	for _, loser := range v.services {
		if loser == v.public || !loser.ExportTo.Public() {
			continue
		}
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: loser.Key, Field: loser.hostField(),
			Reason: fmt.Sprintf("host %s belongs to %s, which %s", loser.Hostname, v.public.Key, s.whyServiceWins(v.public, loser)),
			Advice: "use another host, remove one of them, or export this one to its own namespace only",
			Effect: "only proxies of namespace " + loser.Namespace + " see this one",
		})
	}
	return ds
}

// aliasIndex is which host stands for which (SVC-4). It is immutable.
type aliasIndex struct {
	said   map[ServiceID]string // what each alias says, itself perhaps an alias
	target map[string]string    // of a host that is an alias, its end
	of     map[string][]string  // the aliases of a host, sorted
	loops  []string             // hosts that lead nowhere but to one another
}

// with is the index after the given services said something else; "": no alias.
func (x *aliasIndex) with(said map[ServiceID]string) *aliasIndex {
	next := &aliasIndex{said: maps.Clone(x.said), target: make(map[string]string), of: make(map[string][]string)}
	for id, target := range said {
		if target == "" {
			delete(next.said, id)
		} else {
			next.said[id] = target
		}
	}
	// Of several namespaces that say something of one host, the first counts.
	direct := make(map[string]string, len(next.said))
	first := make(map[string]string, len(next.said))
	for id, target := range next.said {
		if ns, ok := first[id.Hostname]; !ok || id.Namespace < ns {
			first[id.Hostname], direct[id.Hostname] = id.Namespace, target
		}
	}
	for host := range direct {
		end := direct[host]
		for range direct {
			if further, ok := direct[end]; ok {
				end = further
			}
		}
		if _, endless := direct[end]; endless {
			next.loops = append(next.loops, host)
			continue
		}
		next.target[host] = end
		next.of[end] = append(next.of[end], host)
	}
	for _, list := range next.of {
		slices.Sort(list)
	}
	slices.Sort(next.loops)
	return next
}

// end is the host that a host stands for, or itself.
func (x *aliasIndex) end(host string) string {
	if target, ok := x.target[host]; ok {
		return target
	}
	return host
}

// looping says that a host is an alias that leads nowhere.
func (x *aliasIndex) looping(host string) bool {
	_, ok := slices.BinarySearch(x.loops, host)
	return ok
}

// changed is the hosts of which the aliases differ.
func (x *aliasIndex) changed(next *aliasIndex) []string {
	var hosts []string
	for host, list := range next.of {
		if !slices.Equal(list, x.of[host]) {
			hosts = append(hosts, host)
		}
	}
	for host := range x.of {
		if _, ok := next.of[host]; !ok {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// editList is a list of services sorted by host with other ones under some
// hosts; nil or an alias: none.
func editList(list []*Service, moved map[string]*Service) []*Service {
	next := make([]*Service, 0, len(list)+len(moved))
	for _, host := range slices.Sorted(maps.Keys(moved)) {
		i, found := slices.BinarySearchFunc(list, host, func(s *Service, host string) int { return strings.Compare(s.Hostname, host) })
		next = append(next, list[:i]...)
		if found {
			i++
		}
		list = list[i:]
		if s := moved[host]; s != nil && s.AliasOf == "" {
			next = append(next, s)
		}
	}
	return append(next, list...)
}
