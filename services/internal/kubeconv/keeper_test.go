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

	"meshlog.dev/services/internal/kubeconv"
)

// served is an object of testdata/served.txtar, the n-th of its sort.
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

// TestKeeper holds that what many objects have alike is in memory once.
func TestKeeper(t *testing.T) {
	var k kubeconv.Keeper
	a, b := k.Pod(served[corev1.Pod](t, "pod", 1)), k.Pod(served[corev1.Pod](t, "pod", 2))
	if a.Name == b.Name {
		t.Fatalf("both are %s", a.Name)
	}
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() || unsafe.StringData(a.Node) != unsafe.StringData(b.Node) {
		t.Error("labels and node of two pods are in memory twice")
	}
	other := served[corev1.Pod](t, "pod", 3)
	other.Labels["version"] = "v2"
	if c := k.Pod(other); c.Labels["version"] != "v2" || a.Labels["version"] != "v1" {
		t.Errorf("versions %s and %s", a.Labels["version"], c.Labels["version"])
	}
}

// BenchmarkKeeper reports how much memory an object takes that is kept, whole as
// it comes from an API server and as a Keeper has it.
func BenchmarkKeeper(b *testing.B) {
	b.Run("pod", func(b *testing.B) {
		measure(b, served[corev1.Pod](b, "pod", 7), (*kubeconv.Keeper).Pod)
	})
	b.Run("slice of 100", func(b *testing.B) {
		s := served[discoveryv1.EndpointSlice](b, "slice", 7)
		for len(s.Endpoints) < 100 {
			e := *s.Endpoints[0].DeepCopy()
			e.Addresses = []string{fmt.Sprintf("10.1.2.%d", len(s.Endpoints))}
			e.TargetRef.Name = fmt.Sprintf("web-6d5f7c9b8-y%04d", len(s.Endpoints))
			e.NodeName = new(fmt.Sprintf("node-pool-a-8c1b2f3d-q%03d", len(s.Endpoints)))
			s.Endpoints = append(s.Endpoints, e)
		}
		measure(b, s, (*kubeconv.Keeper).Slice)
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

// live is how much of the heap is in use.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
