package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/model"
	. "meshlog.dev/services/internal/model/modeltest"
)

// The names of random worlds: few, so that they meet.
var (
	namespaces = []string{"a", "b", "c", "istio-system"}
	anyName    = []string{"x", "y", "z"}
	anyHost    = []string{"x.a.svc.cluster.local", "y.b.svc.cluster.local", "h.com", "api.h.com", "*.h.com"}
	anyLabels  = []map[string]string{nil, {"app": "x"}, {"app": "y"}, {"app": "x", "v": "1"}}
)

// dice throws what random worlds are made of.
type dice struct{ *rand.Rand }

func throw[T any](d dice, of []T) T { return of[d.IntN(len(of))] }

func (d dice) oneIn(n int) bool { return d.IntN(n) == 0 }

func (d dice) exportTo() []string {
	return throw(d, [][]string{nil, nil, nil, {"*"}, {"."}, {".", "b"}, {"a", "c"}, {"~"}})
}

func (d dice) hosts() []string {
	hosts := []string{throw(d, anyHost)}
	if d.oneIn(3) {
		hosts = append(hosts, throw(d, anyHost))
	}
	return hosts
}

func (d dice) change() Change {
	c := d.object()
	if d.oneIn(4) {
		c = c.Gone()
	} else if d.oneIn(2) {
		c = c.At(time.Unix(int64(d.IntN(3)), 0).UTC())
	}
	switch d.IntN(6) {
	case 0:
		return c.From("kubernetes").In("one")
	case 1:
		return c.From("kubernetes").In("two")
	}
	return c
}

func (d dice) object() Change {
	ns, n := throw(d, namespaces), throw(d, anyName)
	switch d.IntN(9) {
	case 0:
		return Object("Service", ns, n, d.service())
	case 1:
		return Object("ServiceEntry", ns, n, d.serviceEntry())
	case 2, 3:
		ips := []string{"10.1.0.1", "10.1.0.2"}[:1+d.IntN(2)]
		return Slice(ns, throw(d, anyName), throw(d, []string{"8080 http", "9090 tcp", "8080"}), ips...)
	case 4:
		if d.oneIn(2) {
			return Object("Pod", ns, n, &registryv1.Workload{Addresses: []string{"10.2.0.1"}, Labels: throw(d, anyLabels)})
		}
		return Object("WorkloadEntry", ns, n, &networking.WorkloadEntry{
			Address: throw(d, []string{"10.3.0.1", "vm.h.com"}), Labels: throw(d, anyLabels), Weight: uint32(d.IntN(3)),
		})
	case 5, 6:
		return Object("VirtualService", ns, n, d.virtualService())
	case 7:
		return Object("DestinationRule", ns, n, d.rule())
	}
	return Object("Gateway", ns, n, &networking.Gateway{Selector: throw(d, anyLabels), Servers: []*networking.Server{{Hosts: d.hosts()}}})
}

func (d dice) service() *registryv1.Service {
	s := &registryv1.Service{
		Ports:    []*registryv1.ServicePort{{Number: 80, Name: "http"}, {Number: 90, Name: "tcp"}}[:1+d.IntN(2)],
		Headless: d.oneIn(4), ExportTo: d.exportTo(), Selector: throw(d, anyLabels),
	}
	switch d.IntN(5) {
	case 0:
		s.Hostname = throw(d, anyHost)
	case 1:
		s.ExternalName = throw(d, anyHost)
	}
	return s
}

func (d dice) serviceEntry() *networking.ServiceEntry {
	e := &networking.ServiceEntry{
		Hosts: d.hosts(), ExportTo: d.exportTo(),
		Ports:      []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}, {Number: 90, Name: "tcp", Protocol: "TCP"}}[:1+d.IntN(2)],
		Resolution: throw(d, []networking.ServiceEntry_Resolution{networking.ServiceEntry_STATIC, networking.ServiceEntry_STATIC, networking.ServiceEntry_DNS, networking.ServiceEntry_NONE}),
	}
	if d.oneIn(2) {
		e.WorkloadSelector = &networking.WorkloadSelector{Labels: throw(d, anyLabels)}
	}
	if d.oneIn(2) {
		e.Endpoints = []*networking.WorkloadEntry{{Address: throw(d, []string{"10.4.0.1", "10.4.0.2"})}}
	}
	return e
}

func (d dice) virtualService() *networking.VirtualService {
	route := &networking.HTTPRoute{
		Timeout: durationpb.New(time.Duration(d.IntN(2)) * time.Second),
		Route:   []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: throw(d, []string{"x", "y", "h.com"})}}},
	}
	if d.oneIn(4) {
		route.Match = []*networking.HTTPMatchRequest{{SourceLabels: throw(d, anyLabels), SourceNamespace: throw(d, []string{"", "a"})}}
	}
	v := &networking.VirtualService{
		Hosts: append(d.hosts(), throw(d, anyName)), Http: []*networking.HTTPRoute{route}, ExportTo: d.exportTo(),
		Gateways: throw(d, [][]string{nil, nil, {"mesh"}, {"g"}, {"mesh", "a/g"}}),
	}
	if d.oneIn(8) {
		v.Tcp = []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{SourceLabels: throw(d, anyLabels)}}}}
	}
	return v
}

func (d dice) rule() *networking.DestinationRule {
	r := &networking.DestinationRule{Host: throw(d, append([]string{"x", "y", "*"}, anyHost...)), ExportTo: d.exportTo()}
	if d.oneIn(2) {
		r.TrafficPolicy = &networking.TrafficPolicy{}
	}
	if d.oneIn(2) {
		r.Subsets = []*networking.Subset{{Name: throw(d, anyName), Labels: throw(d, anyLabels)}}
	}
	if d.oneIn(10) {
		r.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}}
	}
	return r
}

// settings is a change of how everything else is to be read.
func (d dice) settings() Change {
	if d.oneIn(2) {
		p := &configv1.MeshPolicy{SourcePriority: []string{"kubernetes", "file"}, RootNamespace: throw(d, []string{"", "a"})}
		if d.oneIn(2) {
			slices.Reverse(p.SourcePriority)
		}
		return Object("MeshPolicy", "", "default", p)
	}
	return Object("MeshConfig", "", "default", &meshconfig.MeshConfig{
		DefaultServiceExportTo:         throw(d, [][]string{nil, {"."}}),
		DefaultVirtualServiceExportTo:  throw(d, [][]string{nil, {"."}}),
		DefaultDestinationRuleExportTo: throw(d, [][]string{nil, {"."}}),
		ConnectTimeout:                 durationpb.New(time.Duration(1+d.IntN(2)) * time.Second),
	})
}

// walk makes random worlds, each out of the one before.
func walk(t *testing.T, seed uint64, steps int, visit func(before, after *model.World, keys []model.Key)) {
	d := dice{rand.New(rand.NewPCG(seed, 4))}
	w := model.NewWorld()
	for range steps {
		var changes []Change
		for range 1 + d.IntN(3)*d.IntN(3) {
			changes = append(changes, d.change())
		}
		if d.oneIn(12) {
			changes = append(changes, d.settings())
		}
		next, keys, err := w.Apply(Rows(changes...))
		if err != nil {
			t.Fatal(err)
		}
		visit(w, next, keys)
		w = next
	}
}

// Whatever changes, what Next makes is what the world makes at once, and every
// result of a Reader that differs has an input that is named.
func TestNextIsRebuildOfEverything(t *testing.T) {
	for seed := range uint64(10) {
		pc := model.NewPushContext(model.NewWorld())
		step := 0
		walk(t, seed, 40, func(_, after *model.World, keys []model.Key) {
			step++
			before := pc
			var changed []model.Input
			pc, changed = pc.Next(after, keys)
			rebuilt := model.NewPushContext(after)
			if diff := cmp.Diff(rebuilt.Structure(), pc.Structure()); diff != "" {
				t.Fatalf("seed %d, step %d: -rebuilt +incremental:\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(rebuilt.Diagnostics(), pc.Diagnostics()); diff != "" {
				t.Fatalf("seed %d, step %d: diagnostics: -rebuilt +incremental:\n%s", seed, step, diff)
			}
			named := make(map[model.Input]bool)
			for _, in := range changed {
				named[in] = true
			}
			was, is := readings(before, before, pc), readings(pc, before, pc)
			fresh := readings(rebuilt, before, pc)
			for i := range is {
				if is[i].result != fresh[i].result {
					t.Fatalf("seed %d, step %d: %s\nincremental %s\nrebuilt     %s", seed, step, is[i].what, is[i].result, fresh[i].result)
				}
				if was[i].result != is[i].result && !slices.ContainsFunc(is[i].inputs, func(in model.Input) bool { return named[in] }) {
					t.Fatalf("seed %d, step %d: %s differs, of %v none is named\nwas %s\nis  %s", seed, step, is[i].what, is[i].inputs, was[i].result, is[i].result)
				}
			}
			if !pc.SameClasses(before) {
				return
			}
			for _, p := range anyProxy() {
				if a, b := model.Classify(before, p), model.Classify(pc, p); a != b {
					t.Fatalf("seed %d, step %d: same classes, but %+v is of class\n%+v, was\n%+v", seed, step, p, b, a)
				}
			}
		})
	}
}

// reading is one thing that was read.
type reading struct {
	what, result string
	inputs       []model.Input
}

// readings reads everything from pc that the scopes and objects of others have.
func readings(pc *model.PushContext, others ...*model.PushContext) []reading {
	var all []reading
	read := func(what string, f func(r *model.Reader) any) {
		r := pc.Read()
		all = append(all, reading{what, fmt.Sprintf("%+v", f(r)), r.Inputs()})
	}
	read("mesh", func(r *model.Reader) any { return r.Mesh() })
	scopes := map[model.Scope]bool{{}: true}
	ids := map[model.ServiceID]bool{}
	for _, o := range others {
		for _, ns := range namespaces {
			scopes[o.Scope(ns)] = true
		}
		for _, id := range o.ServiceIDs() {
			ids[id] = true
		}
	}
	for _, s := range sorted(scopes) {
		read(fmt.Sprint("services of ", s), func(r *model.Reader) any { return values(r.Services(s)) })
		for _, host := range append([]string{"x.b.svc.cluster.local", "z.a.svc.cluster.local"}, anyHost...) {
			read(fmt.Sprint(host, " of ", s), func(r *model.Reader) any { return values([]*model.Service{r.ServiceByHost(s, host)}) })
		}
		for _, g := range []string{"mesh", "a/g", "b/g"} {
			read(fmt.Sprint("VirtualServices of ", g, s), func(r *model.Reader) any { return values(r.VirtualServices(s, g)) })
		}
		for _, id := range sorted(ids) {
			read(fmt.Sprint("rule for ", id, s), func(r *model.Reader) any {
				rule, ok := r.Rule(s, id.Namespace, id.Hostname)
				return fmt.Sprint(rule, ok)
			})
		}
	}
	for _, id := range sorted(ids) {
		read(fmt.Sprint(id), func(r *model.Reader) any { return values([]*model.Service{r.Service(id)}) })
		read(fmt.Sprint("endpoints of ", id), func(r *model.Reader) any { return r.Endpoints(id) })
	}
	for _, ns := range namespaces {
		for _, n := range anyName {
			read("VirtualService "+ns+"/"+n, func(r *model.Reader) any {
				return r.VirtualService(model.Key{Namespace: ns, Name: n})
			})
			for _, host := range anyHost {
				read("DestinationRule "+ns+"/"+n+" "+host, func(r *model.Reader) any {
					spec, keys := r.DestinationRule(model.RuleID{Namespace: ns, Host: host, Name: n})
					return fmt.Sprint(spec, keys)
				})
			}
		}
	}
	for _, text := range []string{"*", `app="x"`, `app="y"`, `app="x" v="1"`} {
		read("Gateways "+text, func(r *model.Reader) any { return r.Gateways(text) })
	}
	return all
}

func sorted[T comparable](set map[T]bool) []T {
	var all []T
	for v := range set {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b T) int { return slices.Compare([]string{fmt.Sprint(a)}, []string{fmt.Sprint(b)}) })
	return all
}

func values[T any](list []*T) []T {
	var all []T
	for _, p := range list {
		if p != nil {
			all = append(all, *p)
		}
	}
	return all
}

func anyProxy() []*model.Proxy {
	var all []*model.Proxy
	for _, ns := range append([]string{"elsewhere"}, namespaces...) {
		for _, labels := range anyLabels {
			all = append(all,
				&model.Proxy{Type: model.Sidecar, Namespace: ns, Labels: labels},
				&model.Proxy{Type: model.Router, Namespace: ns, Labels: labels},
			)
		}
	}
	return all
}
