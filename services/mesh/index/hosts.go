package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/problem"
)

// hostView says which service each namespace sees under a host (VIS-3).
// Immutable; nil if no service claims the host.
type hostView struct {
	services []*Service // one per namespace, the winner first
	public   *Service   // the common view; nil: nothing
	// own are the namespaces that see something else: their own service, or one
	// that is exported to them only.
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

// seenFrom returns the service that a namespace sees: its own, else the first
// that is exported to it.
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

// sees returns the service that a namespace sees; "" is the common view.
func (v *hostView) sees(namespace string) *Service {
	if v == nil {
		return nil
	}
	if s, ok := v.own[namespace]; ok {
		return s
	}
	return v.public
}

// views returns the namespaces whose view differs from the common one.
func (v *hostView) views() []string {
	if v == nil {
		return nil
	}
	return slices.Collect(maps.Keys(v.own))
}

// homes returns the namespaces that see a Kubernetes Service of their own,
// which they can call by its bare name.
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

// namespaces returns the namespaces of the host's services.
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

// viewProblems reports services that are public but hidden from some
// namespaces.
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

// aliasIndex says which host is an alias of which (SVC-4). Immutable.
type aliasIndex struct {
	said   map[ServiceID]string // what each alias names, perhaps another alias
	target map[string]string    // the end of an alias's chain
	of     map[string][]string  // the aliases of a host, sorted
	loops  []string             // hosts whose chain has no end
}

// with returns the index after the given services changed what they name; "":
// no alias.
func (x *aliasIndex) with(said map[ServiceID]string) *aliasIndex {
	next := &aliasIndex{said: maps.Clone(x.said), target: make(map[string]string), of: make(map[string][]string)}
	for id, target := range said {
		if target == "" {
			delete(next.said, id)
		} else {
			next.said[id] = target
		}
	}
	// Of several namespaces with the host the first wins.
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

// end returns the end of a host's chain, or the host itself.
func (x *aliasIndex) end(host string) string {
	return cmp.Or(x.target[host], host)
}

// looping reports whether the chain of an alias has no end.
func (x *aliasIndex) looping(host string) bool {
	_, ok := slices.BinarySearch(x.loops, host)
	return ok
}

// changed returns the hosts whose aliases differ.
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

// editList returns a list of services, sorted by host, with other services
// under some hosts; nil or an alias: none.
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
