package index_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

func sidecar(namespace, name string, labels map[string]string, hosts ...string) Change {
	s := &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: hosts}}}
	if labels != nil {
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: labels}
	}
	return Object("Sidecar", namespace, name, s)
}

// SC-1: a Sidecar that selects a workload counts before that of the namespace, and that before
// the one of the root namespace. Of several the oldest counts, and the others are reported.
func TestSidecarSelection(t *testing.T) {
	app := map[string]string{"app": "x"}
	more := map[string]string{"app": "x", "v": "1"}
	at := func(n int64, c Change) Change { return c.At(time.Unix(n, 0)) }
	root, wide, some := at(1, sidecar("istio-system", "root", nil, "a/*")), at(2, sidecar("shop", "wide", nil, "b/*")), at(3, sidecar("shop", "some", app, "c/*"))
	for name, test := range map[string]struct {
		changes []Change
		labels  map[string]string
		want    string
		losers  []string
	}{
		"the mesh's":                       {[]Change{root}, app, "root", nil},
		"the namespace's":                  {[]Change{root, wide, some}, nil, "wide", nil},
		"the workload's":                   {[]Change{root, wide, some}, more, "some", nil},
		"none":                             {[]Change{some}, nil, "", nil},
		"another namespace's":              {[]Change{sidecar("elsewhere", "other", nil, "a/*")}, app, "", nil},
		"labels in the root namespace":     {[]Change{sidecar("istio-system", "some", app, "a/*")}, app, "", nil},
		"the older of a namespace":         {[]Change{wide, at(1, sidecar("shop", "older", nil, "a/*"))}, nil, "older", []string{"wide (spec.workloadSelector): conflict"}},
		"the older of a workload":          {[]Change{some, at(1, sidecar("shop", "older", more, "a/*"))}, more, "older", []string{"some (spec.workloadSelector): conflict"}},
		"the older, for more workloads":    {[]Change{some, at(4, sidecar("shop", "younger", more, "a/*"))}, more, "some", []string{"younger (spec.workloadSelector): conflict"}},
		"a selector without labels":        {[]Change{sidecar("shop", "all", map[string]string{}, "a/*")}, nil, "all", nil},
		"for workloads that cannot be one": {[]Change{some, sidecar("shop", "y", map[string]string{"app": "y"}, "a/*")}, app, "some", nil},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, test.changes...)
			for _, p := range []*proxy.Proxy{
				{Type: proxy.Sidecar, Namespace: "shop", Labels: test.labels}, {GRPC: true, Namespace: "shop", Labels: test.labels},
			} {
				got := index.Classify(pc, p).CDS.Scope.Imports
				if name, home, _ := strings.Cut(got, " "); test.want == "" && got != "" || test.want != "" && (!strings.HasSuffix(name, "/"+test.want) || home != "shop") {
					t.Errorf("%+v imports by %q, want %s", p, got, test.want)
				}
			}
			if got := index.Classify(pc, &proxy.Proxy{Type: proxy.Router, Namespace: "shop", Labels: test.labels}); got.CDS.Scope.Imports != "" {
				t.Errorf("a router imports by %q", got.CDS.Scope.Imports)
			}
			expectProblems(t, pc, test.losers...)
		})
	}
}

// SC-9: proxies of one Sidecar are one class, whatever their labels are, and one that limits
// nothing makes none.
func TestSidecarClasses(t *testing.T) {
	pc := PushContext(t, sidecar("a", "some", map[string]string{"app": "x"}, "b/*"), sidecar("b", "all", nil, "*/*"))
	classOf := func(ns string, labels map[string]string) index.ProxyClass {
		return index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: ns, Labels: labels})
	}
	if classOf("a", map[string]string{"app": "x", "pod": "1"}) != classOf("a", map[string]string{"app": "x", "pod": "2"}) {
		t.Error("proxies that differ in a label that no selector names are in different classes")
	}
	if classOf("a", nil) == classOf("a", map[string]string{"app": "x"}) {
		t.Error("the Sidecar makes no class")
	}
	if classOf("b", nil) != classOf("c", nil) {
		t.Error("the Sidecar that imports everything makes a class")
	}
}

// What a scope imports is what an oracle finds that looks at every service, VirtualService and
// host each time (SC-2, SC-4, SC-10).
func TestImportsAreSound(t *testing.T) {
	checked := 0
	for seed := range uint64(20) {
		pc := index.NewPushContext(world.NewWorld())
		Walk(t, 2000+seed, 25, func(_, after *world.World, keys []ident.Key) {
			pc, _ = pc.Next(after, keys)
			o := oracle{after, pc}
			for _, s := range pc.Imports(append([]string{"elsewhere"}, AnyNamespace...)) {
				name, home, _ := strings.Cut(s.Imports, " ")
				ns, n, _ := strings.Cut(name, "/")
				object := after.Winner(ident.Key{Kind: "Sidecar", Namespace: ns, Name: n})
				wantServices, wantRoutes := o.imports(object.Message.(*networking.Sidecar), home)
				r := pc.Read()
				got := services(r, s)
				if diff := gocmp.Diff(wantServices, got); diff != "" {
					t.Fatalf("seed %d: services of %s by %v (-want +got):\n%s", seed, s.Imports, object.Message, diff)
				}
				for i, e := range r.Egress(s) {
					var routes []string
					for _, h := range e.VirtualServices {
						routes = append(routes, h.Key.String())
					}
					if diff := gocmp.Diff(wantRoutes[i], routes); diff != "" {
						t.Fatalf("seed %d: VirtualServices of %s by %v (-want +got):\n%s", seed, s.Imports, object.Message, diff)
					}
				}
				for _, host := range AnyHost {
					is := slices.ContainsFunc(got, func(id index.ServiceID) bool { return id.Hostname == host })
					if s := r.ServiceByHost(s, host); is != (s != nil && s.Hostname == host) {
						t.Fatalf("seed %d: ServiceByHost(%s) is %v, imported: %v", seed, host, s, is)
					}
				}
				checked += len(got)
			}
		})
	}
	if checked < 1000 {
		t.Errorf("only %d services were imported in all", checked)
	}
}

// sees returns the services of a host that a namespace sees, the winner first.
func (o oracle) sees(host, home string) (all []*index.Service) {
	r := o.pc.Read()
	for _, id := range o.pc.ServiceIDs() {
		if s := r.Service(id); s.Hostname == host && visible(s.ExportTo, nil, id.Namespace, home) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *index.Service) int {
		switch {
		case a.Kubernetes == b.Kubernetes:
			return o.order(a.Key, b.Key, a.Created, b.Created)
		case a.Kubernetes:
			return -1
		}
		return 1
	})
	return all
}

// choose returns the service of a host among some that a namespace imports.
func (o oracle) choose(host, home string, among func(*index.Service) bool) *index.Service {
	var found *index.Service
	all := o.sees(host, home)
	for _, s := range all {
		if s.Key.Source == all[0].Key.Source && among(s) && (found == nil || s.Namespace == home) {
			found = s
		}
	}
	if found == nil || found.AliasOf == "" {
		return found
	}
	for _, s := range o.pc.Read().Services(o.pc.Scope(home)) {
		if slices.Contains(s.Aliases, host) {
			return s
		}
	}
	return nil
}

// listed reports whether entries of hosts name a host of a namespace. without: those with ~.
// both: an entry may be narrower than the host.
func listed(hosts []string, home, namespace, host string, without, both bool) bool {
	covers := func(pattern, host string) bool { // every host of host is one of pattern
		return pattern == host || strings.HasPrefix(pattern, "*") && strings.HasSuffix(strings.TrimPrefix(host, "*"), pattern[1:])
	}
	for _, h := range hosts {
		ns, pattern, _ := strings.Cut(h, "/")
		if strings.HasPrefix(ns, "~") != without {
			continue
		}
		if ns == "~" {
			ns = "*"
		}
		ns = strings.TrimPrefix(ns, "~")
		if ns == "." {
			ns = home
		}
		if (ns == "*" || ns == namespace) && (covers(pattern, host) || both && covers(host, pattern)) {
			return true
		}
	}
	return false
}

// routes returns the VirtualServices that a listener imports.
func (o oracle) routes(e *networking.IstioEgressListener, home string) (names []string) {
	for _, name := range o.virtualServices(home, "mesh") {
		for x := range o.world.Objects("VirtualService") {
			if x.Key.String() != name {
				continue
			}
			if slices.ContainsFunc(x.Message.(*networking.VirtualService).GetHosts(), func(h string) bool {
				h = hostname.Full(h, x.Key.Namespace, "cluster.local")
				return listed(e.GetHosts(), home, x.Key.Namespace, h, false, true) && !listed(e.GetHosts(), home, x.Key.Namespace, h, true, false)
			}) {
				names = append(names, name)
			}
		}
	}
	return names
}

// imports returns the services that a Sidecar imports, and the VirtualServices of each
// listener.
func (o oracle) imports(s *networking.Sidecar, home string) (ids []index.ServiceID, routes [][]string) {
	chosen := map[string]*index.Service{}
	keep := func(s *index.Service, port uint32) {
		if s == nil || chosen[s.Hostname] != nil {
			return
		}
		if _, has := s.Port(port); port == 0 || has {
			chosen[s.Hostname] = s
		}
	}
	hosts := map[string]bool{}
	for _, id := range o.pc.ServiceIDs() {
		hosts[id.Hostname] = true
	}
	for _, e := range s.GetEgress() {
		port := e.GetPort().GetNumber()
		for _, host := range sorted(hosts) {
			keep(o.choose(host, home, func(s *index.Service) bool {
				_, has := s.Port(port)
				return listed(e.GetHosts(), home, s.Namespace, host, false, false) && !listed(e.GetHosts(), home, s.Namespace, host, true, false) &&
					(port == 0 || has || s.AliasOf != "")
			}), port)
		}
		names := o.routes(e, home)
		routes = append(routes, names)
		for _, name := range names {
			for _, d := range o.destinations(name) {
				s, only := o.choose(d.GetHost(), home, func(*index.Service) bool { return true }), port
				if n := d.GetPort().GetNumber(); port != 0 && n != 0 {
					only = n
				} else if port != 0 && s != nil && len(s.Ports) == 1 {
					only = s.Ports[0].Number
				}
				keep(s, only)
			}
		}
	}
	for _, host := range sorted(keySet(chosen)) {
		ids = append(ids, chosen[host].ServiceID)
	}
	return ids, routes
}

// destinations returns the destinations that a VirtualService and those that it delegates to
// name, with hosts in full.
func (o oracle) destinations(name string) (all []*networking.Destination) {
	of := func(x world.Object) {
		m := x.Message.(*networking.VirtualService)
		add := func(d *networking.Destination) {
			if d != nil {
				all = append(all, &networking.Destination{Host: hostname.Full(d.GetHost(), x.Key.Namespace, "cluster.local"), Port: d.GetPort()})
			}
		}
		for _, r := range m.GetHttp() {
			for _, d := range r.GetRoute() {
				add(d.GetDestination())
			}
			add(r.GetMirror())
			for _, d := range r.GetMirrors() {
				add(d.GetDestination())
			}
		}
		for _, r := range m.GetTls() {
			for _, d := range r.GetRoute() {
				add(d.GetDestination())
			}
		}
		for _, r := range m.GetTcp() {
			for _, d := range r.GetRoute() {
				add(d.GetDestination())
			}
		}
	}
	for x := range o.world.Objects("VirtualService") {
		if x.Key.String() != name {
			continue
		}
		of(x)
		for _, r := range x.Message.(*networking.VirtualService).GetHttp() {
			ns := r.GetDelegate().GetNamespace()
			if ns == "" {
				ns = x.Key.Namespace
			}
			for leaf := range o.world.Objects("VirtualService") {
				if d := r.GetDelegate(); d != nil && leaf.Key.Namespace == ns && leaf.Key.Name == d.GetName() {
					of(leaf)
				}
			}
		}
	}
	return all
}
