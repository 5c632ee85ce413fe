package mcpxds_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/mcpxds"
)

// BenchmarkPush is PRF-6: it pushes a set of 30,000 ServiceEntries with two endpoints of which one has
// changed, and measures the time until the change set. The scripted source is in the same
// process: its set, and the encoding of each push, are in the figures for memory.
func BenchmarkPush(b *testing.B) {
	const size = 30_000
	s := mcptest.Start(b, mcptest.Options{})
	set := make([]*anypb.Any, size)
	one := func(i int, host string) *anypb.Any {
		e := entry(host)
		e.Resolution = networking.ServiceEntry_STATIC
		for j := range 2 {
			e.Endpoints = append(e.Endpoints, &networking.WorkloadEntry{
				Address: fmt.Sprintf("10.%d.%d.%d", i>>8&255, i&255, j), Labels: map[string]string{"app": host, "version": "v1"}, Ports: map[string]uint32{"http": 8080},
			})
		}
		return mcptest.Resource(fmt.Sprintf("shop/n%d", i), e)
	}
	bytes := 0
	for i := range size {
		set[i] = one(i, fmt.Sprintf("n%d.example.com", i))
		bytes += len(set[i].GetValue())
	}
	s.Set(mcptest.ServiceEntries, set...)
	before := heap()
	in := watcher.NewInbox(mcpxds.New(mcpxds.Config{Address: s.Address()}), nil)
	in.Watch(b.Context())
	defer in.Rest()
	next := func() watcher.Input {
		for {
			got, err := in.Wait(b.Context(), time.Now().Add(time.Minute))
			if err != nil || got == nil {
				b.Fatal(err)
			}
			if _, is := got.(watcher.Reported); !is {
				return got
			}
		}
	}
	begun := time.Now()
	l, ok := next().(watcher.Listed)
	if !ok || len(l.Listing.Objects) != size {
		b.Fatalf("listed %d objects", len(l.Listing.Objects))
	}
	listing := time.Since(begun)
	l.Listing.Objects = nil
	kept := heap()
	peak, n := uint64(0), 0
	for b.Loop() {
		n++
		set[n%size] = one(n%size, fmt.Sprintf("changed-%d.example.com", n))
		s.Set(mcptest.ServiceEntries, set...)
		c, ok := next().(watcher.Changed)
		if !ok || len(c.Set) != 1 {
			b.Fatalf("%d changes, want one", len(c.Set))
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse)
	}
	b.ReportMetric(float64(listing.Milliseconds()), "ms/listing")
	b.ReportMetric(float64(bytes)/(1<<20), "MiB/push")
	b.ReportMetric(float64(kept-before)/size, "B/object")
	b.ReportMetric(float64(peak)/(1<<20), "MiB-heap-in-use")
}

// heap returns the size of the live heap in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
