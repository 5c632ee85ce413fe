package index_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
)

// After any change the result of Next equals a new PushContext, and Next returns an
// input of every Reader result that differs.
func TestNextIsRebuildOfEverything(t *testing.T) {
	for seed := range uint64(20) {
		pc := index.NewPushContext(world.NewWorld())
		step := 0
		Walk(t, seed, 40, func(_, after *world.World, keys []ident.Key) {
			step++
			before := pc
			var changed []index.Input
			pc, changed = pc.Next(after, keys)
			rebuilt := index.NewPushContext(after)
			if diff := cmp.Diff(rebuilt.Structure(), pc.Structure()); diff != "" {
				t.Fatalf("seed %d, step %d: -rebuilt +incremental:\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(rebuilt.Diagnostics(), pc.Diagnostics()); diff != "" {
				t.Fatalf("seed %d, step %d: diagnostics: -rebuilt +incremental:\n%s", seed, step, diff)
			}
			for _, p := range AnyProxy() {
				if a, b := index.Classify(rebuilt, p), index.Classify(pc, p); a != b {
					t.Fatalf("seed %d, step %d: %+v has the class\n%+v, rebuilt\n%+v", seed, step, p, b, a)
				}
			}
			named := make(map[index.Input]bool)
			for _, in := range changed {
				named[in] = true
			}
			was, is := readings(before, before, pc), readings(pc, before, pc)
			fresh := readings(rebuilt, before, pc)
			for i := range is {
				if is[i].result != fresh[i].result {
					t.Fatalf("seed %d, step %d: %s\nincremental %s\nrebuilt     %s", seed, step, is[i].what, is[i].result, fresh[i].result)
				}
				if was[i].result != is[i].result && !slices.ContainsFunc(is[i].inputs, func(in index.Input) bool { return named[in] }) {
					t.Fatalf("seed %d, step %d: %s differs, but Next returned none of its inputs %v\nwas %s\nis  %s", seed, step, is[i].what, is[i].inputs, was[i].result, is[i].result)
				}
			}
			if !pc.SameClasses(before) {
				return
			}
			if diff := cmp.Diff(before.Classes(), pc.Classes()); diff != "" {
				t.Fatalf("seed %d, step %d: SameClasses is true, but those that the gate checks differ: -was +is\n%s", seed, step, diff)
			}
			for _, p := range AnyProxy() {
				if slices.ContainsFunc(index.TargetInputs(p), func(in index.Input) bool { return named[in] }) {
					continue
				}
				if a, b := index.Classify(before, p), index.Classify(pc, p); a != b {
					t.Fatalf("seed %d, step %d: SameClasses is true, but %+v has another class: -was +is\n%s", seed, step, p, cmp.Diff(a, b))
				}
			}
		})
	}
}

// reading is the result of one Reader method.
type reading struct {
	what, result string
	inputs       []index.Input
}

// readings reads everything from pc for the scopes and objects of others.
func readings(pc *index.PushContext, others ...*index.PushContext) []reading {
	var all []reading
	read := func(what string, f func(r *index.Reader) any) {
		r := pc.Read()
		all = append(all, reading{what, fmt.Sprintf("%+v", f(r)), r.Inputs()})
	}
	read("mesh", func(r *index.Reader) any { return r.Mesh() })
	scopes := map[index.Scope]bool{{}: true}
	ids := map[index.ServiceID]bool{}
	for _, o := range others {
		for _, ns := range AnyNamespace {
			scopes[o.Scope(ns)] = true
		}
		for _, id := range o.ServiceIDs() {
			ids[id] = true
		}
	}
	sidecars := map[index.Scope]bool{}
	for _, o := range others {
		for _, s := range o.Imports(AnyNamespace) {
			sidecars[s] = true
		}
	}
	for _, s := range sorted(sidecars) {
		scopes[s] = true
		read(fmt.Sprint("listeners of ", s), func(r *index.Reader) any {
			text := ""
			for _, e := range r.Egress(s) {
				text += fmt.Sprint(e.Port, e.Protocol, e.Bind, e.Capture, values(e.Services), values(e.VirtualServices), "\n")
			}
			return text
		})
		for _, host := range append([]string{"x.b.svc.cluster.local", "z.a.svc.cluster.local"}, AnyHost...) {
			read(fmt.Sprint("destination ", host, " of ", s), func(r *index.Reader) any { return values([]*index.Service{r.Destination(s, host)}) })
		}
	}
	for _, s := range sorted(scopes) {
		for _, host := range AnyHost {
			read(fmt.Sprint("services of host ", host, " for ", s), func(r *index.Reader) any {
				all, seen := r.ServicesOfHost(s, host)
				return fmt.Sprint(values(all), values([]*index.Service{seen}))
			})
		}
		read(fmt.Sprint("services of ", s), func(r *index.Reader) any { return values(r.Services(s)) })
		for _, host := range append([]string{"x.b.svc.cluster.local", "z.a.svc.cluster.local"}, AnyHost...) {
			read(fmt.Sprint(host, " of ", s), func(r *index.Reader) any { return values([]*index.Service{r.ServiceByHost(s, host)}) })
		}
		for _, g := range []string{"mesh", "a/g", "b/g"} {
			read(fmt.Sprint("VirtualServices of ", g, s), func(r *index.Reader) any { return values(r.VirtualServices(s, g)) })
		}
		for _, id := range sorted(ids) {
			read(fmt.Sprint("rule for ", id, s), func(r *index.Reader) any {
				rule, ok := r.Rule(s, id.Namespace, id.Hostname)
				return fmt.Sprint(rule, ok)
			})
		}
	}
	for _, id := range sorted(ids) {
		read(fmt.Sprint(id), func(r *index.Reader) any { return values([]*index.Service{r.Service(id)}) })
		read(fmt.Sprint("endpoints of ", id), func(r *index.Reader) any { return r.Endpoints(id) })
		read(fmt.Sprint("identities of ", id), func(r *index.Reader) any { return fmt.Sprint(r.Identities(id), r.MutualTLS()) })
	}
	for _, ns := range AnyNamespace {
		for _, n := range AnyName {
			read("VirtualService "+ns+"/"+n, func(r *index.Reader) any {
				return r.VirtualService(ident.Key{Namespace: ns, Name: n})
			})
			for _, host := range AnyHost {
				read("DestinationRule "+ns+"/"+n+" "+host, func(r *index.Reader) any {
					spec, keys := r.DestinationRule(index.RuleID{Namespace: ns, Host: host, Name: n})
					return fmt.Sprint(spec, keys)
				})
			}
		}
	}
	read("gateways of networks", func(r *index.Reader) any { return *r.NetworkGateways() })
	for _, view := range []index.EndpointView{{}, {Cluster: "one"}, {Network: "n1"}, {Network: "n2", Requested: "n1", Family: index.IPv4}, {Network: "~"}} {
		for _, id := range sorted(ids) {
			read(fmt.Sprint("view of ", id, view), func(r *index.Reader) any { return r.Views(view).Of(id) })
		}
	}
	for _, ns := range AnyNamespace {
		for _, labels := range AnyLabels {
			read(fmt.Sprint("peer modes of ", ns, labels), func(r *index.Reader) any {
				return fmt.Sprint(r.PeerModes(ns, labels), r.PeerMode(ns, labels, 8080))
			})
		}
	}
	for _, text := range []string{"*", `app="x"`, `app="y"`, `app="x" v="1"`} {
		read("Gateways "+text, func(r *index.Reader) any {
			var all []index.Gateway
			for _, g := range r.Gateways(text) {
				all = append(all, *g)
			}
			return all
		})
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
