package index_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// endpoints puts the slice of a service with ten endpoints. The first endpoint is
// on the node.
func endpoints(namespace, service, node string) Change {
	m := &registryv1.Endpoints{Service: service, Ports: []*registryv1.EndpointPort{{Name: "http", Number: 8080}}}
	for i := range 10 {
		e := &registryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", len(service), i)}, Labels: map[string]string{"version": "v1"}}
		if i == 0 {
			e.Node = node
		}
		m.Endpoints = append(m.Endpoints, e)
	}
	return Object("EndpointSlice", namespace, service+"-1", m)
}

func virtualService(namespace, host string, timeout int) Change {
	return Object("VirtualService", namespace, host, &networking.VirtualService{
		Hosts: []string{host},
		Http: []*networking.HTTPRoute{{
			Timeout: durationpb.New(time.Duration(timeout) * time.Second),
			Route:   []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
		}},
	})
}

// publicMesh returns a world of n namespaces. Each has ten services with ten
// endpoints, and a VirtualService and a DestinationRule for one of them. One more
// service has no endpoints.
func publicMesh(t testing.TB, n int) *world.World {
	changes := []Change{Service("default", "one-more", "80 http")}
	for i := range n {
		ns := fmt.Sprintf("ns%03d", i)
		for j := range 10 {
			name := fmt.Sprint("svc", j)
			changes = append(changes, Service(ns, name, "80 http"), endpoints(ns, name, ""))
		}
		changes = append(changes, virtualService(ns, "svc0", 1), Object("DestinationRule", ns, "svc0", &networking.DestinationRule{
			Host: "svc0", Subsets: []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}},
		}))
	}
	return World(t, changes...)
}

// BenchmarkNextOf measures one change of a mesh of 1001 services with 10 endpoints,
// 100 VirtualServices and 100 DestinationRules.
func BenchmarkNextOf(b *testing.B) {
	for name, change := range map[string]func(i int) Change{
		"endpoint":       func(i int) Change { return endpoints("ns007", "svc3", fmt.Sprint(i)) },
		"VirtualService": func(i int) Change { return virtualService("ns007", "svc0", i) },
		"rule": func(i int) Change {
			return Object("DestinationRule", "ns007", "svc0", &networking.DestinationRule{Host: "svc0", Subsets: []*networking.Subset{{Name: fmt.Sprint(i)}}})
		},
		"service": func(i int) Change { return Service("ns007", "svc3", fmt.Sprint(1+i%60000)+" http") },
		"hosts of a VirtualService": func(i int) Change {
			return Object("VirtualService", "ns007", "svc0", &networking.VirtualService{Hosts: []string{fmt.Sprint("svc", i)}})
		},
	} {
		b.Run(name, func(b *testing.B) { benchmarkNext(b, publicMesh(b, 100), change) })
		b.Run(name+", each namespace has a view of its own", func(b *testing.B) {
			var private []Change
			for i := range 100 {
				ns := fmt.Sprintf("ns%03d", i)
				private = append(private,
					Object("Service", ns, "own", &registryv1.Service{ExportTo: []string{"."}}),
					Object("VirtualService", ns, "own", &networking.VirtualService{Hosts: []string{"own"}, ExportTo: []string{"."}}),
					Object("DestinationRule", ns, "own", &networking.DestinationRule{Host: "own", ExportTo: []string{"."}}),
				)
			}
			w, _, err := publicMesh(b, 100).Apply(Rows(private...))
			if err != nil {
				b.Fatal(err)
			}
			benchmarkNext(b, w, change)
		})
	}
}

func benchmarkNext(b *testing.B, w *world.World, change func(i int) Change) {
	pc := index.NewPushContext(w)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		i++
		next, keys, err := w.Apply(Rows(change(i)))
		if err != nil {
			b.Fatal(err)
		}
		w = next
		b.StartTimer()
		pc, _ = pc.Next(next, keys)
	}
}

func BenchmarkNewPushContext(b *testing.B) {
	w := publicMesh(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		index.NewPushContext(w)
	}
}

func BenchmarkClassifySidecar(b *testing.B) {
	pc := index.NewPushContext(publicMesh(b, 100))
	p := &proxy.Proxy{Type: proxy.Sidecar, Namespace: "ns042", Labels: map[string]string{"app": "x"}}
	b.ReportAllocs()
	for b.Loop() {
		index.Classify(pc, p)
	}
}
