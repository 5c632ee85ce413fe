package kubeconv_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestTrim holds that what is trimmed converts like the whole, is the same when
// it is trimmed again, and still tells by whom it was written.
func TestTrim(t *testing.T) {
	pod, node := served[corev1.Pod](t, "pod", 1), served[corev1.Node](t, "node", 1)
	var trimmer kubeconv.Trimmer
	trim := func(o metav1.Object) metav1.Object {
		out, err := trimmer.Trim(o)
		if err != nil {
			t.Fatal(err)
		}
		return out.(metav1.Object)
	}
	whole := kubeconv.Converter{Lookup: &cluster{pods: []*corev1.Pod{pod}, nodes: []*corev1.Node{node}}}
	trimmed := kubeconv.Converter{Lookup: &cluster{pods: []*corev1.Pod{trim(pod).(*corev1.Pod)}, nodes: []*corev1.Node{trim(node).(*corev1.Node)}}}
	for name, o := range map[string]metav1.Object{
		"Pod": pod, "Node": node, "Service": served[corev1.Service](t, "service", 1),
		"EndpointSlice": served[discoveryv1.EndpointSlice](t, "slice", 1), "Namespace": served[corev1.Namespace](t, "namespace", 1),
	} {
		once := trim(o)
		if diff := cmp.Diff(payload(t, &whole, name, o), payload(t, &trimmed, name, once)); diff != "" {
			t.Errorf("%s, trimmed, converts to something else (-whole +trimmed):\n%s", name, diff)
		}
		if diff := cmp.Diff(once, trim(once)); diff != "" {
			t.Errorf("%s, trimmed twice (-once +twice):\n%s", name, diff)
		}
		if got, want := kubeconv.Manager(once.GetManagedFields()), kubeconv.Manager(o.GetManagedFields()); got != want {
			t.Errorf("%s, trimmed, was written by %q, want %q", name, got, want)
		}
		if o.GetResourceVersion() != once.GetResourceVersion() || !o.GetCreationTimestamp().Time.Equal(once.GetCreationTimestamp().Time) {
			t.Errorf("%s, trimmed, is %s of %v", name, once.GetResourceVersion(), once.GetCreationTimestamp())
		}
	}
}

// BenchmarkTrim reports how much memory an object takes that is kept, whole as
// it comes from an API server and trimmed, in a cluster of many.
func BenchmarkTrim(b *testing.B) {
	b.Run("pod", func(b *testing.B) {
		measure(b, served[corev1.Pod](b, "pod", 7), func() *corev1.Pod { return &corev1.Pod{} })
	})
	b.Run("service", func(b *testing.B) {
		measure(b, served[corev1.Service](b, "service", 7), func() *corev1.Service { return &corev1.Service{} })
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
		measure(b, s, func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} })
	})
}

func measure[T interface {
	metav1.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}](b *testing.B, o T, empty func() T) {
	wire, err := o.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for _, keep := range []string{"whole", "trimmed"} {
		b.Run(keep, func(b *testing.B) {
			var t kubeconv.Trimmer
			kept := make([]any, b.N)
			before := live()
			for i := range kept {
				o := empty()
				if err := o.Unmarshal(wire); err != nil {
					b.Fatal(err)
				}
				kept[i] = o
				if keep == "trimmed" {
					kept[i], _ = t.Trim(o)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(live()-before)/float64(b.N), "B/kept")
			runtime.KeepAlive(kept)
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
