//go:build registries

package consul_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/consultest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/consul"
)

// TST-3, CON-10, PRF-3, PRF-4, PRF-5: 5000 services with 50,000 instances over HTTPS are
// listed and polled; then 500 instances change a second, for a minute. The test prints the
// figures of README.md.
func TestTST3Load(t *testing.T) {
	const services, instances, rate, seconds = 5000, 10, 500, 60
	ca := certtest.NewCA("consul")
	s := consultest.Start(t, consultest.Options{CA: ca})
	fill(t, s.Client, 1, services, instances)
	o := settings("https://" + s.Addr)
	o.CAFile = certtest.WriteFile(t, t.TempDir(), "ca.pem", ca.PEM())

	debug.FreeOSMemory()
	before := resident(t)
	m := &lagging{mesh: watchNothing(t), listed: make(chan time.Time, 1), sets: make(chan []watcher.Object, 1<<16)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	began := time.Now()
	go func() { defer close(ended); _ = consul.New(o, m.mesh.status).Run(ctx, m) }()
	t.Cleanup(func() { cancel(); <-ended })
	listing := (<-m.listed).Sub(began)
	m.mesh.await("polls", time.Minute, func() bool { return m.mesh.status.Report().GetPolled() == services })
	debug.FreeOSMemory()
	t.Logf("%d services, %d instances listed in %s; %d MB resident, %d before; %d goroutines", services, services*instances, listing, resident(t)>>20, before>>20, runtime.NumGoroutine())
	if listing > 30*time.Second {
		t.Errorf("the listing took %s", listing)
	}
	idle := cpu(t)
	<-time.After(20 * time.Second) // what is measured is a quiet time
	t.Logf("idle: %.1f %% of a core", float64(cpu(t)-idle)/float64(20*time.Second)*100)

	busy, n, changes := cpu(t), 0, time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range seconds * 10 {
		<-tick.C
		var ops []any
		for range rate / 10 {
			i, k := n%services+1, n/services%instances
			ops = append(ops, map[string]any{"Service": map[string]any{"Verb": "set", "Node": "n", "Service": map[string]any{
				"ID": fmt.Sprintf("svc-%d-%d", i, k), "Service": fmt.Sprintf("svc-%d", i), "Address": fmt.Sprintf("10.%d.%d.%d", i/250, i%250, k+1), "Port": 80,
				"Meta": map[string]string{"at": strconv.FormatInt(time.Now().UnixNano(), 10)},
			}}})
			n++
		}
		must(t, s.Put(t.Context(), "/v1/txn", ops, nil))
	}
	took := time.Since(changes)
	lags := m.lags(t, n)
	t.Logf("%d changes in %s (%.0f/s): lag p50 %s, p99 %s, max %s; %.0f %% of a core", n, took.Round(time.Second), float64(n)/took.Seconds(),
		lags[len(lags)/2], lags[len(lags)*99/100], lags[len(lags)-1], float64(cpu(t)-busy)/float64(took)*100)
	if r := m.mesh.status.Report(); r.GetError() != "" {
		t.Errorf("a read failed: %s", r.GetError())
	}
}

// lagging is a sink that measures how late changes come.
type lagging struct {
	*mesh
	listed chan time.Time
	sets   chan []watcher.Object
}

func (m *lagging) List(context.Context, watcher.Listing) error {
	m.listed <- time.Now()
	return nil
}

func (m *lagging) Change(_ context.Context, set []watcher.Object) error {
	now := time.Now()
	for i := range set {
		set[i].Observed = now
	}
	m.sets <- set
	return nil
}

// lags returns the lags of n changes, sorted, each of which set the label at.
func (m *lagging) lags(t *testing.T, n int) (all []time.Duration) {
	seen := map[string]string{}
	for len(all) < n {
		for _, o := range <-m.sets {
			var e registryv1.Endpoints
			if !strings.HasPrefix(o.Kind, "EndpointSlice") {
				continue
			}
			if err := proto.Unmarshal(o.Value.Bytes, &e); err != nil {
				t.Error(err)
			}
			for _, x := range e.GetEndpoints() {
				at := x.GetLabels()["at"]
				if at == "" || seen[x.GetAddresses()[0]] == at {
					continue
				}
				seen[x.GetAddresses()[0]] = at
				nanos, err := strconv.ParseInt(at, 10, 64)
				if err != nil {
					t.Error(err)
				}
				all = append(all, o.Observed.Sub(time.Unix(0, nanos)))
			}
		}
	}
	slices.Sort(all)
	return all
}

// watchNothing returns a mesh without a watcher, for its status.
func watchNothing(t *testing.T) *mesh {
	return &mesh{t: t, status: newStatus(), news: make(chan struct{})}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	must(t, err)
	return pages * os.Getpagesize()
}
