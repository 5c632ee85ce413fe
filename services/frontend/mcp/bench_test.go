package mcp_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/mcp"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
)

// BenchmarkPush measures a push of 30,000 ServiceEntries with two endpoints, one of them changed:
// from the new version to the set that is sent.
func BenchmarkPush(b *testing.B) {
	const all = 30_000
	one := func(i, address int) meshtest.Change {
		e := entry(fmt.Sprintf("s%d.example", i))
		e.Endpoints = []*networking.WorkloadEntry{{Address: fmt.Sprintf("10.0.%d.%d", address>>8&255, address&255)}, {Address: "10.1.0.1"}}
		return meshtest.Object("ServiceEntry", "shop", fmt.Sprintf("s%d", i), e)
	}
	changes := []meshtest.Change{policy()}
	for i := range all {
		changes = append(changes, one(i, i))
	}
	w := meshtest.World(b, changes...)
	pc := index.NewPushContext(w)
	catalog := mcp.NewCatalog()
	catalog.Update(ident.Position{Epoch: 1, Seq: 1}, w, pc, nil)
	stream := mcp.NewStream(catalog, "istio-system", "", "n-")
	if _, err := stream.Request(at, mcp.Request{Type: entries}); err != nil {
		b.Fatal(err)
	}
	push := func() *mcp.Response {
		r, err := stream.Next(at)
		if err != nil || r == nil {
			b.Fatalf("no response is due: %v", err)
		}
		if _, err := stream.Request(at, mcp.Request{Type: entries, Nonce: r.Nonce}); err != nil {
			b.Fatal(err)
		}
		return r
	}
	began := time.Now()
	r := push()
	first := time.Since(began)
	var memory runtime.MemStats
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		next, keys, err := w.Apply(meshtest.Rows(one(i%all, i+1)))
		if err != nil {
			b.Fatal(err)
		}
		after, inputs := pc.Next(next, keys)
		w, pc = next, after
		b.StartTimer()
		catalog.Update(ident.Position{Epoch: 1, Seq: uint64(i + 2)}, w, pc, inputs)
		push()
	}
	runtime.GC()
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(first.Milliseconds()), "ms/first")
	b.ReportMetric(float64(r.Set.Size)/(1<<20), "MiB/set")
	b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "MiB/heap")
	runtime.KeepAlive(catalog)
}
