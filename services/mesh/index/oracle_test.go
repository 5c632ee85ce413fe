package index_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// oracle finds what a namespace sees, as the rows of ROWS.md say. It looks at every
// object of the world each time.
type oracle struct {
	world *world.World
	pc    *index.PushContext
}

// Every namespace sees through its scope, which others may share, what the oracle
// says that it sees.
func TestScopesAreSound(t *testing.T) {
	for seed := range uint64(30) {
		pc := index.NewPushContext(world.NewWorld())
		Walk(t, 1000+seed, 25, func(_, after *world.World, keys []ident.Key) {
			pc, _ = pc.Next(after, keys)
			o := oracle{after, pc}
			for _, ns := range append([]string{"elsewhere"}, AnyNamespace...) {
				r, s := pc.Read(), pc.Scope(ns)
				if diff := gocmp.Diff(o.services(ns), services(r, s)); diff != "" {
					t.Fatalf("seed %d: services of %s (-want +got):\n%s", seed, ns, diff)
				}
				for _, g := range []string{"mesh", "a/g", "b/g"} {
					if diff := gocmp.Diff(o.virtualServices(ns, g), heads(r, s, g)); diff != "" {
						t.Fatalf("seed %d: VirtualServices of %s at %s (-want +got):\n%s", seed, ns, g, diff)
					}
				}
				for _, svc := range r.Services(s) {
					want := o.rule(ns, svc.Namespace, svc.Hostname)
					got, _ := r.Rule(s, svc.Namespace, svc.Hostname)
					if want != got {
						t.Fatalf("seed %d: rule of %s for %v: %v, want %v", seed, ns, svc.ServiceID, got, want)
					}
				}
			}
		})
	}
}

func services(r *index.Reader, s index.Scope) []index.ServiceID {
	var ids []index.ServiceID
	for _, svc := range r.Services(s) {
		ids = append(ids, svc.ServiceID)
	}
	return ids
}

func heads(r *index.Reader, s index.Scope, gateway string) []string {
	var names []string
	for _, h := range r.VirtualServices(s, gateway) {
		names = append(names, h.Key.String())
	}
	return names
}

// order compares objects that compete for one name; the first one wins.
func (o oracle) order(a, b ident.Key, aCreated, bCreated time.Time) int {
	place := func(source string) int {
		if i := slices.Index(o.world.Policy().SourcePriority, source); i >= 0 {
			return i
		}
		return 100
	}
	age := func(at time.Time) int64 {
		if at.IsZero() {
			return 1 << 60
		}
		return at.UnixNano()
	}
	return cmp.Or(cmp.Compare(place(a.Source), place(b.Source)), cmp.Compare(age(aCreated), age(bCreated)),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
}

func (o oracle) services(namespace string) []index.ServiceID {
	byHost, own := map[string]*index.Service{}, map[string]*index.Service{}
	r := o.pc.Read()
	for _, id := range o.pc.ServiceIDs() {
		s := r.Service(id)
		if !visible(s.ExportTo, nil, id.Namespace, namespace) {
			continue
		}
		if id.Namespace == namespace {
			own[id.Hostname] = s
		}
		have := byHost[id.Hostname]
		switch {
		case have == nil:
			byHost[id.Hostname] = s
		case s.Kubernetes != have.Kubernetes:
			if s.Kubernetes {
				byHost[id.Hostname] = s
			}
		case o.order(s.Key, have.Key, s.Created, have.Created) < 0:
			byHost[id.Hostname] = s
		}
	}
	for host, s := range own {
		if s.Key.Source == byHost[host].Key.Source {
			byHost[host] = s
		}
	}
	var ids []index.ServiceID
	for _, host := range sorted(keySet(byHost)) {
		if byHost[host].AliasOf == "" {
			ids = append(ids, byHost[host].ServiceID)
		}
	}
	return ids
}

func keySet[V any](m map[string]V) map[string]bool {
	set := map[string]bool{}
	for k := range m {
		set[k] = true
	}
	return set
}

// visible reports whether exportTo shows an object to a namespace (VIS-1).
func visible(exportTo, byDefault []string, own, namespace string) bool {
	if len(exportTo) == 0 {
		exportTo = byDefault
	}
	if slices.Contains(exportTo, "*") {
		return true
	}
	if slices.Contains(exportTo, "~") {
		return false
	}
	return slices.Contains(exportTo, namespace) || namespace == own && slices.Contains(exportTo, ".")
}

// objects returns the objects of a kind that a namespace sees, in order.
func (o oracle) objects(kind, namespace string, exportTo func(proto.Message) []string, byDefault []string) []world.Object {
	var all []world.Object
	for x := range o.world.Objects(kind) {
		if visible(exportTo(x.Message), byDefault, x.Key.Namespace, namespace) {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b world.Object) int { return o.order(a.Key, b.Key, a.Created, b.Created) })
	return all
}

func (o oracle) virtualServices(namespace, gateway string) []string {
	var names []string
	export := func(m proto.Message) []string { return m.(*networking.VirtualService).GetExportTo() }
	for _, x := range o.objects("VirtualService", namespace, export, o.world.MeshConfig().GetDefaultVirtualServiceExportTo()) {
		gateways := x.Message.(*networking.VirtualService).GetGateways()
		if len(gateways) == 0 {
			gateways = []string{"mesh"}
		}
		for _, g := range gateways {
			if g == gateway || x.Key.Namespace+"/"+g == gateway {
				names = append(names, x.Key.String())
				break
			}
		}
	}
	return names
}

func (o oracle) rule(client, service, host string) index.RuleID {
	export := func(m proto.Message) []string { return m.(*networking.DestinationRule).GetExportTo() }
	byDefault := o.world.MeshConfig().GetDefaultDestinationRuleExportTo()
	root := o.world.MeshConfig().GetRootNamespace()
	for step, ns := range []string{client, service, root} {
		best := index.RuleID{}
		for _, x := range o.objects("DestinationRule", client, export, byDefault) {
			m := x.Message.(*networking.DestinationRule)
			ruleHost := hostname.Full(m.GetHost(), x.Key.Namespace, "cluster.local")
			private := func() bool {
				to := m.GetExportTo()
				if len(to) == 0 {
					to = byDefault
				}
				return len(to) == 1 && (to[0] == "." || to[0] == ns)
			}
			switch {
			case x.Key.Namespace != ns || m.GetWorkloadSelector() != nil:
			case step == 0 && client == root && !private():
			case ruleHost != host && !(strings.HasPrefix(ruleHost, "*") && strings.HasSuffix(strings.TrimPrefix(host, "*"), ruleHost[1:])):
			case best.Name == "", len(ruleHost) > len(best.Host):
				best = index.RuleID{Namespace: ns, Host: ruleHost, Name: x.Key.Name}
			}
		}
		if best.Name != "" {
			return best
		}
	}
	return index.RuleID{}
}

// A namespace whose objects are all public has the common view.
func TestPublicNamespacesShareAScope(t *testing.T) {
	pc := index.NewPushContext(publicMesh(t, 100))
	for i := range 100 {
		ns := fmt.Sprintf("ns%03d", i)
		if s := pc.Scope(ns); s != (index.Scope{}) {
			t.Errorf("%s has the scope %+v", ns, s)
		}
		class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: ns})
		if class.RDS.Namespace != ns {
			t.Errorf("%s has the short names of namespace %q", ns, class.RDS.Namespace)
		}
		class.RDS.Namespace = ""
		if elsewhere := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "elsewhere"}); class != elsewhere {
			t.Errorf("the class of %s is %+v, want the common %+v", ns, class, elsewhere)
		}
	}
}
