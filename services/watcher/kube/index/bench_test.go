package index

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	runtimeobject "k8s.io/apimachinery/pkg/runtime"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
)

// The cluster of the benchmarks: 10000 services with 10 endpoints each, of
// 20000 pods on 500 nodes.
const (
	benchServices = 10_000
	benchPods     = 20_000
	benchNodes    = 500
	benchPer      = 10
)

func benchObjects(yield func(kind string, from runtimeobject.Object)) {
	for i := range benchNodes {
		yield("Node", node(fmt.Sprint("node-", i), fmt.Sprint("eu-", i%3)))
	}
	for i := range benchPods {
		yield("Pod", benchPod(i))
	}
	for i := range benchServices {
		name := fmt.Sprint("service-", i)
		yield("Service", service("prod", name))
		yield("EndpointSlice", benchSlice(i))
	}
}

func benchPod(i int) *corev1.Pod {
	p := pod("prod", fmt.Sprint("pod-", i, "-7d4b9c6f5-x2x", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
		"app", fmt.Sprint("app-", i/2), "version", "v1", "pod-template-hash", "7d4b9c6f5")
	p.Spec.NodeName, p.Spec.ServiceAccountName = fmt.Sprint("node-", i%benchNodes), fmt.Sprint("account-", i/2)
	return p
}

func benchSlice(i int) *discoveryv1.EndpointSlice {
	s := slice("prod", fmt.Sprint("service-", i, "-abcde"), fmt.Sprint("service-", i))
	for j := range benchPer {
		p := benchPod((i*benchPer + j) % benchPods)
		node, yes := p.Spec.NodeName, true
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIPs[0].IP}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "prod", Name: p.Name},
		})
	}
	return s
}

func benchIndex() *Index {
	x, keep := New(nil), &kubeconv.Keeper{}
	converters := map[string]Converter{}
	benchObjects(func(name string, from runtimeobject.Object) {
		if converters[name] == nil {
			k, _ := kind.ByName(name)
			converters[name] = Objects(k, kubeconv.Converter{}, keep)
		}
		o, _ := converters[name](from)
		o.Seen = start
		x.Put(&Feed{Name: name}, o)
	})
	x.Changes()
	return x
}

// BenchmarkIndex measures the time and the memory for the index of a large cluster.
func BenchmarkIndex(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		x := benchIndex()
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(x)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
}

// BenchmarkEndpointChange makes one endpoint unready in that cluster.
func BenchmarkEndpointChange(b *testing.B) {
	x := benchIndex()
	k, _ := kind.ByName(SliceKind)
	convert := Objects(k, kubeconv.Converter{}, &kubeconv.Keeper{})
	i := 0
	for b.Loop() {
		s := benchSlice(i % benchServices)
		no := i/benchServices%2 == 1
		s.Endpoints[0].Conditions.Ready = &no
		o, _ := convert(s)
		o.Seen = time.Now()
		x.Put(&Feed{Name: "EndpointSlice"}, o)
		if got := len(x.Changes()); got > 1 {
			b.Fatalf("%d changes", got)
		}
		i++
	}
}
