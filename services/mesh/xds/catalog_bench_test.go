package xds_test

import (
	"fmt"
	"runtime"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// The mesh of the benchmarks.
const (
	benchServices   = 1001
	benchEndpoints  = 10
	benchRules      = 100 // services with a VirtualService and a DestinationRule
	benchNamespaces = 100 // each has a rule of its own, so its proxies are a class
)

type benchMesh struct {
	world   *world.World
	pc      *index.PushContext
	changed []index.Input // by the last change
}

func newBenchMesh(tb testing.TB) *benchMesh {
	var all []meshtest.Change
	for i := range benchServices {
		all = append(all, benchEntry(i, 0))
		if i < benchRules {
			all = append(all, benchRoutes(i, 90), benchRule(i))
		}
	}
	for i := range benchNamespaces {
		private := &networking.DestinationRule{
			Host: benchHost(benchRules + i), ExportTo: []string{"."},
			TrafficPolicy: &networking.TrafficPolicy{ConnectionPool: &networking.ConnectionPoolSettings{
				Tcp: &networking.ConnectionPoolSettings_TCPSettings{ConnectTimeout: durationpb.New(1e9 + 1e6*1)},
			}},
		}
		all = append(all, meshtest.Object("DestinationRule", benchNamespace(i), "private", private))
	}
	m := &benchMesh{world: world.NewWorld()}
	m.pc = index.NewPushContext(m.world)
	m.change(tb, all...)
	return m
}

func (m *benchMesh) change(tb testing.TB, changes ...meshtest.Change) {
	tb.Helper()
	next, keys, err := m.world.Apply(meshtest.Rows(changes...))
	if err != nil {
		tb.Fatal(err)
	}
	m.world = next
	m.pc, m.changed = m.pc.Next(next, keys)
}

func benchNamespace(i int) string { return fmt.Sprintf("ns-%d", i%benchNamespaces) }

func benchHost(i int) string {
	return fmt.Sprintf("svc-%d.%s.svc.cluster.local", i, benchNamespace(i))
}

func benchEntry(i, version int) meshtest.Change {
	e := &networking.ServiceEntry{
		Hosts: []string{benchHost(i)}, Addresses: []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)},
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP", TargetPort: 8080}},
	}
	for n := range benchEndpoints {
		address := fmt.Sprintf("10.%d.%d.%d", 128+n, i/250, i%250+1)
		if n == 0 && version > 0 {
			address = fmt.Sprintf("10.250.%d.%d", version/250%250, version%250+1)
		}
		e.Endpoints = append(e.Endpoints, &networking.WorkloadEntry{
			Address: address, Labels: map[string]string{"app": fmt.Sprintf("svc-%d", i), "version": fmt.Sprintf("v%d", 1+n%2)},
		})
	}
	return meshtest.Object("ServiceEntry", benchNamespace(i), fmt.Sprintf("svc-%d", i), e)
}

func benchRoutes(i int, v1 int32) meshtest.Change {
	to := func(subset string, weight int32) *networking.HTTPRouteDestination {
		return &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: benchHost(i), Subset: subset}, Weight: weight}
	}
	v := &networking.VirtualService{Hosts: []string{benchHost(i)}, Http: []*networking.HTTPRoute{
		{
			Match: []*networking.HTTPMatchRequest{{Headers: map[string]*networking.StringMatch{
				"x-canary": {MatchType: &networking.StringMatch_Exact{Exact: "yes"}},
			}}},
			Route: []*networking.HTTPRouteDestination{to("v2", 0)},
		},
		{
			Timeout: durationpb.New(5e9),
			Retries: &networking.HTTPRetry{Attempts: 2, PerTryTimeout: durationpb.New(2e9), RetryOn: "5xx,connect-failure"},
			Route:   []*networking.HTTPRouteDestination{to("v1", v1), to("v2", 100-v1)},
		},
	}}
	return meshtest.Object("VirtualService", benchNamespace(i), fmt.Sprintf("svc-%d", i), v)
}

func benchRule(i int) meshtest.Change {
	return meshtest.Object("DestinationRule", benchNamespace(i), fmt.Sprintf("svc-%d", i), &networking.DestinationRule{
		Host: benchHost(i),
		TrafficPolicy: &networking.TrafficPolicy{
			ConnectionPool: &networking.ConnectionPoolSettings{
				Tcp:  &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: 100, ConnectTimeout: durationpb.New(2e9)},
				Http: &networking.ConnectionPoolSettings_HTTPSettings{Http1MaxPendingRequests: 100},
			},
			LoadBalancer:     &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_Simple{Simple: networking.LoadBalancerSettings_LEAST_REQUEST}},
			OutlierDetection: &networking.OutlierDetection{Consecutive_5XxErrors: wrapperspb.UInt32(5), Interval: durationpb.New(10e9), BaseEjectionTime: durationpb.New(30e9)},
		},
		Subsets: []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}, {Name: "v2", Labels: map[string]string{"version": "v2"}}},
	})
}

// classes returns the classes of the sidecars in n namespaces.
func (m *benchMesh) classes(n int) []index.ProxyClass {
	var all []index.ProxyClass
	for i := range n {
		all = append(all, index.Classify(m.pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: benchNamespace(i), Metadata: &structpb.Struct{}}))
	}
	return all
}

func (m *benchMesh) catalog(classes []index.ProxyClass) *xds.Catalog {
	c := xds.NewCatalog(m.pc)
	for _, class := range classes {
		for t := range ident.ResourceTypes {
			c.Set(class, t)
		}
	}
	return c
}

// BenchmarkCatalogFirst makes the resources of all classes from nothing. MB is the
// memory that they take, wire-MB the size of the resources of one class.
func BenchmarkCatalogFirst(b *testing.B) {
	m := newBenchMesh(b)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("classes=%d", n), func(b *testing.B) {
			classes := m.classes(n)
			for b.Loop() {
				m.catalog(classes)
			}
			before := heap()
			c := m.catalog(classes)
			b.ReportMetric(float64(heap()-before)/1e6, "MB")
			size := 0
			for t := range ident.ResourceTypes {
				for _, r := range c.Set(classes[0], t).Resources {
					size += len(r.Head) + r.Size()
				}
			}
			b.ReportMetric(float64(size)/1e6, "wire-MB")
			if ds := c.Diagnostics(); len(ds) > 0 {
				b.Errorf("%d problems, the first: %+v", len(ds), ds[0])
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// BenchmarkCatalogUpdate measures one change after the PushContext is made.
func BenchmarkCatalogUpdate(b *testing.B) {
	changes := map[string]func(i int) meshtest.Change{
		"endpoint": func(i int) meshtest.Change { return benchEntry(benchServices-1, 1+i) },
		"route":    func(i int) meshtest.Change { return benchRoutes(0, int32(1+i%99)) },
		"service": func(i int) meshtest.Change {
			c := benchEntry(benchServices, 0)
			if i%2 == 1 {
				c = c.Gone()
			}
			return c
		},
	}
	for _, what := range []string{"endpoint", "route", "service"} {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/classes=%d", what, n), func(b *testing.B) {
				m := newBenchMesh(b)
				c := m.catalog(m.classes(n))
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					m.change(b, changes[what](i))
					i++
					b.StartTimer()
					if len(c.Update(m.pc, m.changed)) == 0 {
						b.Fatal("nothing changed")
					}
				}
			})
		}
	}
}
