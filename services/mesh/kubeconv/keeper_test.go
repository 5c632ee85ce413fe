package kubeconv_test

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/tools/txtar"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kubeconv"
)

// served returns the n-th object of a kind in testdata/served.txtar.
func served[T any](t testing.TB, name string, n int) *T {
	t.Helper()
	ar, err := txtar.ParseFile("testdata/served.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ar.Files {
		if f.Name == name+".yaml" {
			text := string(f.Data)
			for _, verb := range []string{"%05d", "%d"} {
				text = strings.ReplaceAll(text, verb, fmt.Sprintf(verb, n))
			}
			return read[T](t, text)
		}
	}
	t.Fatalf("no %s", name)
	return nil
}

// TestKeeper checks that equal values share memory.
func TestKeeper(t *testing.T) {
	var k kubeconv.Keeper
	a, b := k.Pod(served[corev1.Pod](t, "pod", 1)), k.Pod(served[corev1.Pod](t, "pod", 2))
	if a.Name == b.Name {
		t.Fatalf("both are %s", a.Name)
	}
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() || unsafe.StringData(a.Node) != unsafe.StringData(b.Node) {
		t.Error("two pods do not share equal labels and node names")
	}
	other := served[corev1.Pod](t, "pod", 3)
	other.Labels["version"] = "v2"
	if c := k.Pod(other); c.Labels["version"] != "v2" || a.Labels["version"] != "v1" {
		t.Errorf("versions %s and %s", a.Labels["version"], c.Labels["version"])
	}
}

// TestServed checks that objects of a healthy cluster are valid.
func TestServed(t *testing.T) {
	var k kubeconv.Keeper
	c := kubeconv.Converter{Lookup: &cluster{nodes: []*corev1.Node{served[corev1.Node](t, "node", 1)}}}
	for name, o := range map[string]any{
		"Pod": k.Pod(served[corev1.Pod](t, "pod", 1)), "EndpointSlice": k.Slice(served[discoveryv1.EndpointSlice](t, "slice", 1)),
		"Service": served[corev1.Service](t, "service", 1), "Node": served[corev1.Node](t, "node", 1),
		"Namespace": served[corev1.Namespace](t, "namespace", 1),
	} {
		p := payload(t, &c, name, o)
		m, err := mustKind(t, name).Decode(p.Type, p.Bytes)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, problem := range mustKind(t, name).Validate("", m) {
			t.Errorf("%s: %+v", name, problem)
		}
	}
}

// BenchmarkSlice converts a slice with 100 endpoints, as a change of any of its pods does.
func BenchmarkSlice(b *testing.B) {
	var k kubeconv.Keeper
	in := known{"eu", map[string]*kubeconv.Pod{}}
	s := hundred(b)
	for i := range s.Endpoints {
		p := served[corev1.Pod](b, "pod", i)
		p.Name = s.Endpoints[i].TargetRef.Name
		in.pods[p.Name] = k.Pod(p)
	}
	c, kept, of := kubeconv.Converter{Lookup: in}, k.Slice(s), mustKind(b, "EndpointSlice")
	b.ReportAllocs()
	for b.Loop() {
		if p, _ := c.Payload(of, kept); len(p.Bytes) < 100*10 {
			b.Fatal(p)
		}
	}
}

// known is a Lookup that has the pods of a namespace by name.
type known struct {
	region string
	pods   map[string]*kubeconv.Pod
}

func (k known) Pod(_, name string) *kubeconv.Pod     { return k.pods[name] }
func (k known) PodAt(string, string) *kubeconv.Pod   { return nil }
func (k known) Locality(string) *registryv1.Locality { return &registryv1.Locality{Region: k.region} }

// hundred returns a slice with 100 endpoints.
func hundred(b *testing.B) *discoveryv1.EndpointSlice {
	b.Helper()
	s := served[discoveryv1.EndpointSlice](b, "slice", 7)
	for len(s.Endpoints) < 100 {
		e := *s.Endpoints[0].DeepCopy()
		e.Addresses = []string{fmt.Sprintf("10.1.2.%d", len(s.Endpoints))}
		e.TargetRef.Name = fmt.Sprintf("web-6d5f7c9b8-y%04d", len(s.Endpoints))
		e.NodeName = new(fmt.Sprintf("node-pool-a-8c1b2f3d-q%03d", len(s.Endpoints)))
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// BenchmarkKeeper reports the memory of an object, as an API server sends it and as a Keeper
// keeps it.
func BenchmarkKeeper(b *testing.B) {
	b.Run("pod", func(b *testing.B) {
		measure(b, served[corev1.Pod](b, "pod", 7), (*kubeconv.Keeper).Pod)
	})
	b.Run("slice of 100", func(b *testing.B) {
		measure(b, hundred(b), (*kubeconv.Keeper).Slice)
	})
}

func measure[T any, P interface {
	*T
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}, K any](b *testing.B, o P, keep func(*kubeconv.Keeper, P) K) {
	wire, err := o.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for _, how := range []string{"whole", "kept"} {
		b.Run(how, func(b *testing.B) {
			var k kubeconv.Keeper
			all := make([]any, b.N)
			before := live()
			for i := range all {
				o := P(new(T))
				if err := o.Unmarshal(wire); err != nil {
					b.Fatal(err)
				}
				all[i] = o
				if how == "kept" {
					all[i] = keep(&k, o)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(live()-before)/float64(b.N), "B/object")
			runtime.KeepAlive(all)
		})
	}
}

// live returns the used part of the heap.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
