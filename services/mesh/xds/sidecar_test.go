package xds_test

import (
	"fmt"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// wideMesh is a mesh of many services, of which the sidecars of each namespace import their
// own, if imports is set.
type wideMesh struct {
	benchMesh
	namespaces, each int
}

func newWideMesh(tb testing.TB, namespaces, each int, imports bool) *wideMesh {
	m := &wideMesh{benchMesh{world: world.NewWorld()}, namespaces, each}
	m.pc = index.NewPushContext(m.world)
	var all []meshtest.Change
	for ns := range namespaces {
		for i := range each {
			all = append(all, m.entry(ns, i, 0))
		}
		all = append(all, m.routes(ns, 0, 0))
	}
	if imports {
		all = append(all, meshtest.Object("Sidecar", "istio-system", "default", &networking.Sidecar{
			Egress: []*networking.IstioEgressListener{{Hosts: []string{"./*"}}},
		}))
	}
	m.change(tb, all...)
	return m
}

func wideNamespace(ns int) string { return fmt.Sprintf("wide-%d", ns) }

func wideHost(ns, i int) string { return fmt.Sprintf("svc-%d.wide-%d.example", i, ns) }

func (m *wideMesh) entry(ns, i, version int) meshtest.Change {
	at := ns*m.each + i
	e := &networking.ServiceEntry{
		Hosts: []string{wideHost(ns, i)}, Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 96+at/62500, at/250%250, at%250+1)},
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}, {Number: 9000, Name: "tcp", Protocol: "TCP"}},
	}
	for n := range 3 {
		e.Endpoints = append(e.Endpoints, &networking.WorkloadEntry{Address: fmt.Sprintf("10.%d.%d.%d", 120+n+10*version, at/250, at%250+1)})
	}
	return meshtest.Object("ServiceEntry", wideNamespace(ns), fmt.Sprintf("svc-%d", i), e)
}

func (m *wideMesh) routes(ns, i, version int) meshtest.Change {
	to := &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: wideHost(ns, i), Port: &networking.PortSelector{Number: 80}}}
	return meshtest.Object("VirtualService", wideNamespace(ns), fmt.Sprintf("svc-%d", i), &networking.VirtualService{
		Hosts: []string{wideHost(ns, i)},
		Http:  []*networking.HTTPRoute{{Name: fmt.Sprint("v", version), Route: []*networking.HTTPRouteDestination{to}}},
	})
}

func (m *wideMesh) class(ns int) index.ProxyClass {
	return index.Classify(m.pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: wideNamespace(ns)})
}

// SC-8: a change outside of what a Sidecar imports changes nothing for its proxies, and they
// stay in their class; one within it does.
func TestImportsLimitChanges(t *testing.T) {
	m := newWideMesh(t, 3, 4, true)
	c := m.catalog([]index.ProxyClass{m.class(1)})
	for _, step := range []struct {
		what    string
		change  meshtest.Change
		outside bool
	}{
		{"new service elsewhere", m.entry(2, 9, 0), true},
		{"other endpoints elsewhere", m.entry(2, 1, 1), true},
		{"new routes elsewhere", m.routes(2, 1, 0), true},
		{"other routes elsewhere", m.routes(0, 0, 1), true},
		{"rule elsewhere", meshtest.Object("DestinationRule", wideNamespace(2), "r", &networking.DestinationRule{Host: wideHost(2, 1)}), true},
		{"service elsewhere goes", m.entry(2, 9, 0).Gone(), true},
		{"other endpoints", m.entry(1, 1, 1), false},
		{"new routes", m.routes(1, 1, 0), false},
		{"new service", m.entry(1, 9, 0), false},
	} {
		class := m.class(1)
		m.change(t, step.change)
		changes := c.Update(m.pc, m.changed)
		if (len(changes) == 0) != step.outside {
			t.Errorf("%s: %d changes", step.what, len(changes))
		}
		if m.class(1) != class {
			t.Errorf("%s: the class is another one", step.what)
		}
	}
}

// SC-8: which parts are made again follows what a Sidecar imports: a service elsewhere is no
// input of any.
func TestImportsLimitInputs(t *testing.T) {
	m := newWideMesh(t, 3, 4, true)
	c := m.catalog([]index.ProxyClass{m.class(1)})
	m.change(t, m.entry(2, 9, 0), m.routes(2, 1, 0))
	changed := map[index.Input]bool{}
	for _, in := range m.changed {
		changed[in] = true
	}
	class := m.class(1)
	for _, typ := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} {
		for _, r := range c.Set(class, typ).Resources {
			parts, search := c.Inputs(class, typ, r.Name)
			for _, in := range append(parts, search...) {
				if changed[in] {
					t.Errorf("%s %s is made from %+v", typ.Message(), r.Name, in)
				}
			}
		}
	}
}

// BenchmarkImports makes the resources of the sidecars of some namespaces in a mesh of 10,000
// services, with a Sidecar that has them import the 50 of their own, and without. MB is the
// memory that they take, wire-MB the size of the resources of one sidecar, and us/change how
// long the change of a service of another namespace takes (SC-8, SC-9).
func BenchmarkImports(b *testing.B) {
	for _, imports := range []bool{false, true} {
		m := newWideMesh(b, 200, 50, imports)
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("sidecar=%v/namespaces=%d", imports, n), func(b *testing.B) {
				var classes []index.ProxyClass
				for ns := range n {
					classes = append(classes, m.class(ns))
				}
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
			})
		}
	}
}

// BenchmarkImportsUpdate measures the change of a service that the sidecars do not import.
func BenchmarkImportsUpdate(b *testing.B) {
	for _, imports := range []bool{false, true} {
		b.Run(fmt.Sprintf("sidecar=%v/namespaces=100", imports), func(b *testing.B) {
			m := newWideMesh(b, 200, 50, imports)
			var classes []index.ProxyClass
			for ns := range 100 {
				classes = append(classes, m.class(ns))
			}
			c, i := m.catalog(classes), 0
			for b.Loop() {
				b.StopTimer()
				change := m.entry(150, 60, 0)
				if i++; i%2 == 0 {
					change = change.Gone()
				}
				m.change(b, change)
				b.StartTimer()
				c.Update(m.pc, m.changed)
			}
		})
	}
}
