package apply

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// classesView is what classes of proxies would get that all differ in the same way.
type classesView struct {
	Classes []string `json:"classes"`
	// Proxies is how many connected proxies are of these classes; absent if the mesh
	// does not run.
	Proxies   *int                `json:"proxies,omitempty"`
	Bytes     int                 `json:"bytes"` // of the resources that each proxy would be sent
	Resources []past.ObjectChange `json:"resources"`
	// Losses are routes, hosts and last endpoints that a proxy would lose.
	Losses []string `json:"losses,omitempty"`
}

// impact finds out what a change of the world does to classes of proxies.
type impact struct {
	before   *index.PushContext
	classes  []index.ProxyClass
	problems []problem.Diagnostic // that the world before does not have
}

// differing are the resources of a type that differ for a class.
type differing struct {
	t       ident.ResourceType
	was, is *xds.Resource
}

// setKey names what proxies of a class get of a type.
type setKey struct {
	of index.ProxyClass
	t  ident.ResourceType
}

// ofType returns the resources of a type that differ for a class in a next world, in which
// some inputs differ, and the problems of the type that are new there.
func (i *impact) ofType(t ident.ResourceType, next *index.PushContext, inputs []index.Input) (map[setKey][]differing, []problem.Diagnostic) {
	catalog, before := xds.NewCatalog(i.before), map[setKey]*xds.Set{}
	for _, c := range i.classes {
		before[setKey{c.Only(t), t}] = catalog.Set(c, t)
	}
	known := catalog.Diagnostics()
	differs := map[setKey][]differing{}
	for _, c := range catalog.Update(next, inputs) {
		k := setKey{c.Class.Only(c.Type), c.Type}
		for _, name := range c.Names {
			if d := (differing{c.Type, before[k].Find(name), c.Set.Find(name)}); !d.was.Same(d.is) {
				differs[k] = append(differs[k], d)
			}
		}
	}
	return differs, without(catalog.Diagnostics(), known)
}

// without returns the diagnostics that are not among some.
func without(all, known []problem.Diagnostic) []problem.Diagnostic {
	is := map[problem.Diagnostic]bool{}
	for _, d := range known {
		is[d] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(d problem.Diagnostic) bool { return is[d] })
}

// of returns what the classes would get in a world that differs in these keys. It makes the
// types of resources at once: they have nothing in common.
func (i *impact) of(w *world.World, changed []ident.Key) []classesView {
	next, inputs := i.before.Next(w, changed)
	var of [ident.ResourceTypes]struct {
		differs  map[setKey][]differing
		problems []problem.Diagnostic
	}
	var types sync.WaitGroup
	for t := range ident.ResourceTypes {
		types.Go(func() { of[t].differs, of[t].problems = i.ofType(t, next, inputs) })
	}
	types.Wait()
	differs := map[setKey][]differing{}
	i.problems = without(next.Diagnostics(), i.before.Diagnostics())
	for _, one := range of {
		maps.Copy(differs, one.differs)
		i.problems = append(i.problems, without(one.problems, i.problems)...)
	}
	alike := map[string]*classesView{}
	for _, c := range i.classes {
		var all []differing
		for t := range ident.ResourceTypes {
			all = append(all, differs[setKey{c.Only(t), t}]...)
		}
		if len(all) == 0 {
			continue
		}
		var sums strings.Builder
		for _, d := range all {
			fmt.Fprintf(&sums, "%d %s %v %v\n", d.t, cmp.Or(d.was, d.is).Name, sumOf(d.was), sumOf(d.is))
		}
		v := alike[sums.String()]
		if v == nil {
			v = viewDiffering(all)
			alike[sums.String()] = v
		}
		if name := c.String(); !slices.Contains(v.Classes, name) {
			v.Classes = append(v.Classes, name)
		}
	}
	views := []classesView{}
	for _, k := range slices.Sorted(maps.Keys(alike)) {
		slices.Sort(alike[k].Classes)
		views = append(views, *alike[k])
	}
	slices.SortStableFunc(views, func(a, b classesView) int { return cmp.Compare(a.Classes[0], b.Classes[0]) })
	return views
}

func sumOf(r *xds.Resource) (s xds.Sum) {
	if r != nil {
		s = r.Sum
	}
	return s
}

func viewDiffering(all []differing) *classesView {
	v := &classesView{}
	for _, d := range all {
		change, messages := command.CompareResources(d.t, d.was, d.is)
		v.Resources = append(v.Resources, change)
		if d.is != nil {
			v.Bytes += d.is.Size()
		}
		v.Losses = append(v.Losses, losses(change.Object, messages[0], messages[1])...)
	}
	return v
}

// losses returns what a proxy that has was would lose with is; nil: the resource goes.
func losses(name string, was, is proto.Message) (lost []string) {
	switch was := was.(type) {
	case *endpointv3.ClusterLoadAssignment:
		is, _ := is.(*endpointv3.ClusterLoadAssignment)
		if countEndpoints(was) > 0 && countEndpoints(is) == 0 {
			lost = append(lost, name+" loses its last endpoint")
		}
	case *routev3.RouteConfiguration:
		is, _ := is.(*routev3.RouteConfiguration)
		hosts := map[string]*routev3.VirtualHost{}
		for _, vh := range is.GetVirtualHosts() {
			for _, domain := range vh.GetDomains() {
				hosts[domain] = vh
			}
		}
		for _, vh := range was.GetVirtualHosts() {
			lost = append(lost, lostRoutes(name, vh, hosts)...)
		}
	}
	return lost
}

func countEndpoints(c *endpointv3.ClusterLoadAssignment) (n int) {
	for _, l := range c.GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	return n
}

// lostRoutes returns the domains of a virtual host that no virtual host has any more, and
// the routes whose match its successor lacks.
func lostRoutes(name string, was *routev3.VirtualHost, hosts map[string]*routev3.VirtualHost) (lost []string) {
	successors := map[*routev3.VirtualHost]bool{}
	for _, domain := range was.GetDomains() {
		if vh := hosts[domain]; vh != nil {
			successors[vh] = true
		} else {
			lost = append(lost, fmt.Sprintf("%s loses the host %s", name, domain))
		}
	}
	for vh := range successors {
		has := map[string]bool{}
		for _, r := range vh.GetRoutes() {
			has[matchText(r)] = true
		}
		for _, r := range was.GetRoutes() {
			if !has[matchText(r)] {
				lost = append(lost, fmt.Sprintf("%s loses the route %s of %s", name, cmp.Or(r.GetName(), matchText(r)), vh.GetName()))
			}
		}
	}
	slices.Sort(lost)
	return slices.Compact(lost)
}

// matchText returns what a route matches, as text that can be compared: prototext puts one
// or two spaces between fields, at random.
func matchText(r *routev3.Route) string {
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(r.GetMatch())), " ")
}
