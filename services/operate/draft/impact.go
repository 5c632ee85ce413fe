package draft

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

// Classes is what classes of proxies would get that all differ in the same way.
type Classes struct {
	Classes []string `json:"classes"`
	// Proxies is how many connected proxies are of these classes; absent if the mesh
	// does not run.
	Proxies   *int                `json:"proxies,omitempty"`
	Bytes     int                 `json:"bytes"` // of the resources that each proxy would be sent
	Resources []past.ObjectChange `json:"resources"`
	// Losses are routes, hosts and last endpoints that a proxy would lose.
	Losses []string `json:"losses,omitempty"`
}

// impact is what a change of the world does to classes of proxies.
type impact struct {
	classes  []Classes
	problems []problem.Diagnostic // that the world before does not have
}

// differing are the resources of a type that differ for a class.
type differing struct {
	t       ident.ResourceType
	was, is *xds.Resource
}

// setKey names the resources of a type that a class has.
type setKey struct {
	of index.ProxyClass
	t  ident.ResourceType
}

func keyOfSet(c index.ProxyClass, t ident.ResourceType) setKey { return setKey{c.Only(t), t} }

// moved is a set of resources that a draft has changed.
type moved struct {
	set   *xds.Set
	names map[string]bool // of the resources that may differ from those of the ground
}

// survey notes what classes get on the ground, and the problems that it has.
func (g *Ground) survey(classes []index.ProxyClass) {
	if !slices.ContainsFunc(classes, func(c index.ProxyClass) bool { return g.base[keyOfSet(c, ident.CDS)] == nil }) {
		return
	}
	g.back()
	var mu sync.Mutex
	g.each(func(t ident.ResourceType, catalog *xds.Catalog) {
		for _, c := range classes {
			set := catalog.Set(c, t)
			mu.Lock()
			g.base[keyOfSet(c, t)] = set
			mu.Unlock()
		}
	})
	g.known = map[problem.Diagnostic]bool{}
	for _, d := range g.diagnostics() {
		g.known[d] = true
	}
}

// each calls f for each type, several at a time.
func (g *Ground) each(f func(t ident.ResourceType, catalog *xds.Catalog)) {
	var all sync.WaitGroup
	for t, catalog := range g.catalogs {
		all.Go(func() { f(t, catalog) })
	}
	all.Wait()
}

// update moves the resources to a push context.
func (g *Ground) update(pc *index.PushContext, inputs []index.Input) (all []xds.Change) {
	var mu sync.Mutex
	g.each(func(_ ident.ResourceType, catalog *xds.Catalog) {
		some := catalog.Update(pc, inputs)
		mu.Lock()
		all = append(all, some...)
		mu.Unlock()
	})
	g.pc = pc
	return all
}

// diagnostics returns the problems that the resources show.
func (g *Ground) diagnostics() (all []problem.Diagnostic) {
	has := map[problem.Diagnostic]bool{}
	add := func(some []problem.Diagnostic) {
		for _, d := range some {
			if !has[d] {
				has[d] = true
				all = append(all, d)
			}
		}
	}
	add(g.pc.Diagnostics())
	for t := range ident.ResourceTypes {
		add(g.catalogs[t].Diagnostics())
	}
	return all
}

// move moves the resources to a world that differs from that of the ground in these keys.
func (g *Ground) move(w *world.World, changed []ident.Key) {
	keys := slices.Concat(g.away, changed)
	slices.SortFunc(keys, world.CompareKeys)
	next, inputs := g.pc.Next(w, slices.Compact(keys))
	for _, c := range g.update(next, inputs) {
		k := keyOfSet(*c.Class, c.Type)
		if g.base[k] == nil {
			continue
		}
		m := g.moved[k]
		if m == nil {
			m = &moved{names: map[string]bool{}}
			g.moved[k] = m
		}
		m.set = c.Set
		for _, name := range c.Names {
			m.names[name] = true
		}
	}
	g.away = changed
}

// differing returns the resources that differ for a class, by type and name. Those that an
// earlier draft has moved and this one has not are forgotten.
func (g *Ground) differing(c index.ProxyClass) (all []differing) {
	for t := range ident.ResourceTypes {
		k := keyOfSet(c, t)
		m := g.moved[k]
		if m == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(m.names)) {
			if d := (differing{t, g.base[k].Find(name), m.set.Find(name)}); !d.was.Same(d.is) {
				all = append(all, d)
			} else {
				delete(m.names, name)
			}
		}
	}
	return all
}

// impact returns what classes would get in a world that differs in these keys.
func (g *Ground) impact(w *world.World, changed []ident.Key, classes []index.ProxyClass) impact {
	g.survey(classes)
	g.move(w, changed)
	i := impact{classes: []Classes{}}
	i.problems = slices.DeleteFunc(g.diagnostics(), func(d problem.Diagnostic) bool { return g.known[d] })
	alike, compared := map[string]*Classes{}, map[differing]comparison{}
	for _, c := range classes {
		all := g.differing(c)
		if len(all) == 0 {
			continue
		}
		var sums strings.Builder
		for _, d := range all {
			fmt.Fprintf(&sums, "%d %s %v %v\n", d.t, cmp.Or(d.was, d.is).Name, sumOf(d.was), sumOf(d.is))
		}
		v := alike[sums.String()]
		if v == nil {
			v = viewDiffering(all, compared)
			alike[sums.String()] = v
		}
		if name := c.String(); !slices.Contains(v.Classes, name) {
			v.Classes = append(v.Classes, name)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(alike)) {
		slices.Sort(alike[k].Classes)
		i.classes = append(i.classes, *alike[k])
	}
	slices.SortStableFunc(i.classes, func(a, b Classes) int { return cmp.Compare(a.Classes[0], b.Classes[0]) })
	return i
}

func sumOf(r *xds.Resource) (s xds.Sum) {
	if r != nil {
		s = r.Sum
	}
	return s
}

// comparison is how a resource differs, and what is lost with it.
type comparison struct {
	change past.ObjectChange
	losses []string
}

// viewDiffering compares resources; those that it has compared for another class are in compared.
func viewDiffering(all []differing, compared map[differing]comparison) *Classes {
	v := &Classes{}
	for _, d := range all {
		c, known := compared[d]
		if !known {
			change, messages := command.CompareResources(d.t, d.was, d.is)
			if d.t == ident.EDS { // an endpoint that stays is in none of them
				messages = [2]proto.Message{whole(d.t, d.was), whole(d.t, d.is)}
			}
			c = comparison{change, losses(change.Object, messages[0], messages[1])}
			compared[d] = c
		}
		v.Resources = append(v.Resources, c.change)
		if d.is != nil {
			v.Bytes += d.is.Size()
		}
		v.Losses = append(v.Losses, c.losses...)
	}
	return v
}

// whole decodes a resource; nil: there is none, or this build cannot read it.
func whole(t ident.ResourceType, r *xds.Resource) proto.Message {
	if r == nil {
		return nil
	}
	m, err := command.Message(t, r)
	if err != nil {
		return nil
	}
	return m
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
