package index

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/table"
)

// hostView holds the service that each namespace sees under a host (VIS-3).
// Immutable; the zero value is the view of a host that no service claims.
type hostView struct {
	services []*Service // one per namespace, the winner first
	public   *Service   // the common view; nil: nothing
	// own are the namespaces that see something else: their own service, or one
	// that is exported to them only.
	own map[string]*Service
}

func viewHost(services []*Service) hostView {
	v := hostView{services: services}
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
// that is exported to it. Its own is not seen if the first is of another source,
// because a host that one source has is no other's to take over (AGG-2).
func seenFrom(services []*Service, namespace string) *Service {
	var first *Service
	for _, s := range services {
		if !s.ExportTo.Shows(s.Namespace, namespace) {
			continue
		}
		if first == nil {
			first = s
		}
		if s.Namespace == namespace && s.Key.Source == first.Key.Source {
			return s
		}
	}
	return first
}

// sees returns the service that a namespace sees; "" is the common view.
func (v hostView) sees(namespace string) *Service {
	if s, ok := v.own[namespace]; ok {
		return s
	}
	return v.public
}

// views returns the namespaces whose view differs from the common one.
func (v hostView) views() []string { return slices.Collect(maps.Keys(v.own)) }

// homes returns the namespace whose callers may use the bare name of the host,
// if they see a service there.
func (v hostView) homes(domainSuffix string) []string {
	if len(v.services) == 0 {
		return nil
	}
	ns := hostname.Home(v.services[0].Hostname, domainSuffix)
	if s := v.sees(ns); ns == "" || s == nil || s.AliasOf != "" {
		return nil
	}
	return []string{ns}
}

// grpc returns the namespaces of the services of the host that have a port for gRPC.
func (v hostView) grpc() (namespaces []string) {
	for _, s := range v.services {
		if slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == GRPC }) {
			namespaces = append(namespaces, s.Namespace)
		}
	}
	return namespaces
}

// viewProblems reports each service that is exported to all namespaces and that some of
// them do not see, and each one that is exported to some and that none of them sees.
func (s *settings) viewProblems(v hostView) []problem.Diagnostic {
	var ds []problem.Diagnostic
	seen := make(map[*Service]bool, len(v.own))
	for _, s := range v.own {
		seen[s] = true
	}
	for _, loser := range v.services {
		if loser == v.public {
			continue
		}
		winner, private := v.sees(loser.Namespace), !loser.ExportTo.Public()
		d := problem.Diagnostic{
			Severity: problem.Warning, Code: "conflict", Key: loser.Key, Field: loser.hostField(),
			Advice: "use another host, or remove one of them", Effect: "no proxy sees this one",
		}
		switch {
		case private && (winner == nil || winner.Key.Source == loser.Key.Source || seen[loser]):
			continue
		case private:
		case winner == loser:
			winner = v.public
			d.Advice = "use another host, remove one of them, or export this one to its own namespace only"
			d.Effect = "only proxies of namespace " + loser.Namespace + " see this one"
		}
		d.Reason = fmt.Sprintf("host %s belongs to %s, which %s", loser.Hostname, winner.Key, s.whyServiceWins(winner, loser))
		ds = append(ds, d)
	}
	return ds
}

// aliasIndex holds the aliases of hosts (SVC-4). Immutable.
type aliasIndex struct {
	said   map[ServiceID]string // the host that each alias names, perhaps another alias
	target map[string]string    // the end of an alias's chain, if it has one
	of     map[string][]string  // the aliases of a host, sorted
}

// with returns the index after the given services changed what they name; "":
// no alias.
func (x aliasIndex) with(said map[ServiceID]string) aliasIndex {
	next := aliasIndex{said: table.CloneMap(x.said), target: make(map[string]string), of: make(map[string][]string)}
	maps.Copy(next.said, said)
	maps.DeleteFunc(next.said, func(_ ServiceID, target string) bool { return target == "" })
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
			continue
		}
		next.target[host] = end
		next.of[end] = append(next.of[end], host)
	}
	for _, list := range next.of {
		slices.Sort(list)
	}
	return next
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
