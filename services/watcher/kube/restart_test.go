package kube

import (
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/kubetest"
)

// TestRestarts restarts the watcher, the API server and both, and checks that the watcher
// reports exactly the changes in between.
func TestRestarts(t *testing.T) {
	ctx := t.Context()
	s := kubetest.Start(t)
	must(t, s.InstallIstioCRDs(ctx, serviceEntries))
	must(t, s.Apply(ctx, shop))
	for i := range 6 {
		must(t, s.Apply(ctx, serviceEntry(fmt.Sprint("r", i))))
	}
	entry := func(i int) string { return fmt.Sprint("ServiceEntry shop/r", i) }
	w, stop := observe(t, s.Config())
	w.lists("ServiceEntry", "EndpointSlice")

	// The watcher.
	stop()
	must(t, s.Delete(ctx, serviceEntry("r0")), s.Apply(ctx, serviceEntry("r6")))
	stop = w.run(s.Config())
	w.has(entry(6))
	w.lacks(entry(0))

	// The API server, for long enough that the source is down.
	s.API.Kill()
	w.until("the source to be down", func() bool { return w.down != nil })
	w.neverDeleted()
	must(t, s.API.Start(ctx))
	must(t, s.Delete(ctx, serviceEntry("r1")), s.Apply(ctx, serviceEntry("r7")))
	w.has(entry(7))
	w.lacks(entry(1))

	// The whole machine crashes.
	must(t, s.Restart(ctx))
	must(t, s.Delete(ctx, serviceEntry("r2")), s.Apply(ctx, serviceEntry("r8")))
	w.has(entry(8))
	w.lacks(entry(2))

	// Only etcd.
	must(t, s.Etcd.Stop())
	if d := w.says("API server", "not-ready"); !strings.Contains(d.Reason, "etcd") {
		t.Errorf("%+v", d)
	}
	must(t, s.Etcd.Start(ctx))
	w.isWell("API server")
	must(t, s.Apply(ctx, serviceEntry("r9")))
	w.has(entry(9))

	// Watcher and API server, and the history in between is compacted.
	stop()
	s.API.Kill()
	must(t, s.API.Start(ctx))
	must(t, s.Delete(ctx, serviceEntry("r3")), s.Apply(ctx, serviceEntry("r10")))
	must(t, s.Compact(ctx))
	w.run(s.Config())
	w.has(entry(10), entry(4), entry(5), "EndpointSlice shop/cart-1", "Pod shop/cart-1")
	w.lacks(entry(3))
}
