package meshtest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// The names in random worlds: few, so that objects refer to each other.
var (
	AnyNamespace = []string{"a", "b", "c", "istio-system"}
	AnyName      = []string{"x", "y", "z"}
	AnyHost      = []string{"x.a.svc.cluster.local", "y.b.svc.cluster.local", "h.com", "api.h.com", "*.h.com"}
	AnyLabels    = []map[string]string{nil, {"app": "x"}, {"app": "y"}, {"app": "x", "v": "1"}}
)

// dice makes random objects.
type dice struct{ *rand.Rand }

func throw[T any](d dice, of []T) T { return of[d.IntN(len(of))] }

func (d dice) oneIn(n int) bool { return d.IntN(n) == 0 }

func (d dice) exportTo() []string {
	return throw(d, [][]string{nil, nil, nil, {"*"}, {"."}, {".", "b"}, {"a", "c"}, {"~"}})
}

func (d dice) hosts() []string {
	hosts := []string{throw(d, AnyHost)}
	if d.oneIn(3) {
		hosts = append(hosts, throw(d, AnyHost))
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
	ns, n := throw(d, AnyNamespace), throw(d, AnyName)
	switch d.IntN(12) {
	case 0:
		return Object("Service", ns, n, d.service())
	case 1:
		return Object("ServiceEntry", ns, n, d.serviceEntry())
	case 2, 3:
		ips := []string{"10.1.0.1", "10.1.0.2"}[:1+d.IntN(2)]
		slice := Slice(ns, throw(d, AnyName), throw(d, []string{"8080 http", "9090 tcp", "8080"}), ips...)
		for _, e := range slice.message.(*registryv1.Endpoints).GetEndpoints() {
			e.Network, e.MutualTls = throw(d, []string{"", "", "n1", "n2"}), d.oneIn(2)
		}
		return slice
	case 4:
		if d.oneIn(2) {
			return Object("Pod", ns, n, &registryv1.Workload{Addresses: []string{"10.2.0.1"}, Labels: throw(d, AnyLabels)})
		}
		return Object("WorkloadEntry", ns, n, &networking.WorkloadEntry{
			Address: throw(d, []string{"10.3.0.1", "vm.h.com"}), Labels: throw(d, AnyLabels), Weight: uint32(d.IntN(3)),
		})
	case 5, 6:
		return Object("VirtualService", ns, n, d.virtualService())
	case 7:
		return Object("DestinationRule", ns, n, d.rule())
	case 8:
		return d.raw(n)
	case 9, 10:
		return d.network()
	}
	return Object("Gateway", ns, n, &networking.Gateway{Selector: throw(d, AnyLabels), Servers: []*networking.Server{{Hosts: d.hosts()}}})
}

// raw puts a raw resource, perhaps with the name of a generated one.
func (d dice) raw(object string) Change {
	nodes := Group("m")
	if d.oneIn(2) {
		nodes = nil
	}
	cluster := throw(d, []string{"raw", "outbound|80||h.com"})
	switch d.IntN(4) {
	case 0:
		return PutFor(object, nodes, Cluster(cluster, 1+d.IntN(2)))
	case 1:
		return PutFor(object, nodes, Endpoints(cluster, uint32(1+d.IntN(2))))
	case 2:
		return PutFor(object, nodes, Listener(throw(d, []string{"raw", "0.0.0.0_80"}), uint32(1+d.IntN(2)), "raw"))
	}
	return PutFor(object, nodes, Routes(throw(d, []string{"raw", "80"}), To(cluster, uint32(1+d.IntN(2)))))
}

func (d dice) service() *registryv1.Service {
	s := &registryv1.Service{
		Ports:     []*registryv1.ServicePort{{Number: 80, Name: "http"}, {Number: 90, Name: "tcp"}}[:1+d.IntN(2)],
		Addresses: throw(d, [][]string{nil, {"10.0.0.1"}, {"10.0.0.2"}}),
		Headless:  d.oneIn(4), ExportTo: d.exportTo(), Selector: throw(d, AnyLabels),
	}
	switch d.IntN(5) {
	case 0:
		s.Hostname = throw(d, AnyHost)
	case 1:
		s.ExternalName = throw(d, AnyHost)
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
		e.WorkloadSelector = &networking.WorkloadSelector{Labels: throw(d, AnyLabels)}
	}
	if d.oneIn(2) {
		e.Endpoints = []*networking.WorkloadEntry{{Address: throw(d, []string{"10.4.0.1", "10.4.0.2"})}}
	}
	return e
}

func (d dice) virtualService() *networking.VirtualService {
	route := &networking.HTTPRoute{
		Timeout: durationpb.New(time.Duration(d.IntN(2)) * time.Second),
		Route:   d.destinations(),
	}
	if d.oneIn(4) {
		route.Match = []*networking.HTTPMatchRequest{{SourceLabels: throw(d, AnyLabels), SourceNamespace: throw(d, []string{"", "a"})}}
	}
	routes := []*networking.HTTPRoute{route}
	if d.oneIn(3) {
		routes = append([]*networking.HTTPRoute{{
			Match:   []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: "/" + throw(d, AnyName)}}}},
			Rewrite: &networking.HTTPRewrite{Uri: "/"}, Route: d.destinations(),
		}}, routes...)
	}
	v := &networking.VirtualService{
		Hosts: append(d.hosts(), throw(d, AnyName)), Http: routes, ExportTo: d.exportTo(),
		Gateways: throw(d, [][]string{nil, nil, {"mesh"}, {"g"}, {"mesh", "a/g"}}),
	}
	if d.oneIn(8) {
		v.Tcp = []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{SourceLabels: throw(d, AnyLabels)}}}}
	}
	return v
}

func (d dice) destinations() []*networking.HTTPRouteDestination {
	to := func() *networking.Destination {
		return &networking.Destination{Host: throw(d, []string{"x", "y", "h.com"}), Subset: throw(d, []string{"", "", "x", "y"})}
	}
	if d.oneIn(2) {
		return []*networking.HTTPRouteDestination{{Destination: to()}}
	}
	share := int32(1 + d.IntN(3))
	return []*networking.HTTPRouteDestination{{Destination: to(), Weight: share}, {Destination: to(), Weight: 100 - share}}
}

func (d dice) rule() *networking.DestinationRule {
	r := &networking.DestinationRule{Host: throw(d, append([]string{"x", "y", "*"}, AnyHost...)), ExportTo: d.exportTo()}
	if d.oneIn(2) {
		r.TrafficPolicy = &networking.TrafficPolicy{}
		if d.oneIn(2) {
			r.TrafficPolicy.LoadBalancer = &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_Simple{
				Simple: throw(d, []networking.LoadBalancerSettings_SimpleLB{networking.LoadBalancerSettings_ROUND_ROBIN, networking.LoadBalancerSettings_RANDOM}),
			}}
		}
	}
	if d.oneIn(2) {
		r.Subsets = []*networking.Subset{{Name: throw(d, AnyName), Labels: throw(d, AnyLabels)}}
	}
	if d.oneIn(10) {
		r.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}}
	}
	return r
}

// settings changes the MeshPolicy or the MeshConfig.
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
		ServiceSettings: []*meshconfig.MeshConfig_ServiceSettings{{
			Settings: &meshconfig.MeshConfig_ServiceSettings_Settings{ClusterLocal: d.oneIn(2)}, Hosts: []string{throw(d, []string{"*.a.svc.cluster.local", "*"})},
		}},
	})
}

// Walk visits random worlds, each a change of the world before.
func Walk(t testing.TB, seed uint64, steps int, visit func(before, after *world.World, keys []ident.Key)) {
	d := dice{rand.New(rand.NewPCG(seed, 4))}
	w := world.NewWorld()
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

// AnyProxy returns proxies of all kinds that random worlds treat differently.
func AnyProxy() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, ns := range append([]string{"elsewhere"}, AnyNamespace...) {
		for _, labels := range AnyLabels {
			all = append(all,
				&proxy.Proxy{Type: proxy.Sidecar, Namespace: ns, Labels: labels},
				&proxy.Proxy{Type: proxy.Router, Namespace: ns, Labels: labels},
			)
		}
	}
	return append(all, networkProxies()...)
}
