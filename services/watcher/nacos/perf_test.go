//go:build registries

package nacos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"

	"meshlog.dev/deploy/testkit/nacostest"
)

var (
	perfServices = flag.Int("perf-services", 500, "services of TestPerformance; the README's figures are of 5000")
	perfSeconds  = flag.Int("perf-seconds", 10, "how long TestPerformance makes changes; the README's figures are of 60")
)

// perfInstances are the instances of each service.
const perfInstances = 10

// meter is a sink that keeps no objects. It measures how late changes are.
type meter struct {
	listed chan watcher.Listing

	mu      sync.Mutex
	changed map[string]time.Time // by service
	lags    []time.Duration
	own     []time.Duration // since the push
	events  int
}

func (m *meter) List(_ context.Context, l watcher.Listing) error { m.listed <- l; return nil }
func (m *meter) Problems(string, []problem.Diagnostic)           {}

func (m *meter) Change(_ context.Context, set []watcher.Object) error {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range set {
		service, _, slice := strings.Cut(o.Name, "#")
		if at := m.changed[service]; slice && !o.Delete && !at.IsZero() {
			m.events++
			m.lags = append(m.lags, now.Sub(at))
			m.own = append(m.own, now.Sub(o.Observed))
		}
	}
	return nil
}

func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// resident returns the memory of this process in MB.
func resident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	must(t, err)
	return pages * os.Getpagesize() >> 20
}

func perfHost(service, instance int, weight float64) map[string]any {
	return map[string]any{
		"ip": fmt.Sprintf("10.%d.%d.%d", service/250, service%250, instance+1), "port": 8080, "weight": weight, "healthy": true, "enabled": true, "ephemeral": true,
		"clusterName": "DEFAULT", "metadata": map[string]string{"version": "v1", "preserved.register.source": "SPRING_CLOUD"},
	}
}

// PRF-3, PRF-4, PRF-5: how long a listing takes, what an instance costs, how late changes are
// while many come, and what an idle watcher costs.
func TestPerformance(t *testing.T) {
	s := nacostest.Start(t, nacostest.Options{Env: []string{"RUST_LOG=warn"}})
	p := provide(t, s, nil)
	var work sync.WaitGroup
	turns := make(chan int)
	for range 8 {
		work.Go(func() {
			for i := range turns {
				for j := range perfInstances {
					p.register(t, fmt.Sprintf("s%04d", i), perfHost(i, j, 1))
				}
			}
		})
	}
	for i := range *perfServices {
		turns <- i
	}
	close(turns)
	work.Wait()

	before, small := heap(), resident(t)
	w, err := New(Config{Addresses: []string{s.Addr}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	m := &meter{listed: make(chan watcher.Listing, 1), changed: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- w.Run(ctx, m) }()
	l := <-m.listed
	listed := time.Since(start)
	if len(l.Objects) != 2**perfServices || l.Partial {
		t.Fatalf("%d objects, partial %t", len(l.Objects), l.Partial)
	}
	l = watcher.Listing{}

	settled := time.NewTimer(5 * time.Second) // the push that follows each subscription
	<-settled.C
	each := (heap() - before) / float64(*perfServices*perfInstances)

	large := resident(t)

	idle, began := cpu(t), time.Now()
	rest := time.NewTimer(20 * time.Second)
	<-rest.C
	share := float64(cpu(t)-idle) / float64(time.Since(began)) * 100

	m.mu.Lock()
	m.lags, m.own, m.events = nil, nil, 0 // nothing has changed
	m.mu.Unlock()
	changes := *perfSeconds * 500
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	busy, began := cpu(t), time.Now()
	for n := range changes {
		<-tick.C
		i := n % *perfServices
		name := fmt.Sprintf("s%04d", i)
		m.mu.Lock()
		m.changed[name] = time.Now()
		m.mu.Unlock()
		p.register(t, name, perfHost(i, n / *perfServices % perfInstances, 2+float64(n)/float64(changes)))
	}
	took := time.Since(began)
	load := float64(cpu(t)-busy) / float64(took) * 100
	last := time.NewTimer(3 * time.Second) // the last pushes
	<-last.C
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the run has ended: %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.lags)
	slices.Sort(m.own)
	if len(m.lags) == 0 {
		t.Fatal("no change arrived")
	}
	at := func(all []time.Duration, share float64) time.Duration {
		return all[int(share*float64(len(all)-1))].Round(time.Millisecond)
	}
	t.Logf("%d services with %d instances each: listed in %s; %.0f B of heap an instance, %d MB resident, %d before; idle %.1f %% of a core",
		*perfServices, perfInstances, listed.Round(time.Millisecond), each, large, small, share)
	t.Logf("%d changes in %s: %d slices, lag p50 %s p99 %s max %s, since the push p50 %s p99 %s max %s, %.0f %% of a core with the provider",
		changes, took.Round(time.Second), m.events, at(m.lags, .5), at(m.lags, .99), at(m.lags, 1), at(m.own, .5), at(m.own, .99), at(m.own, 1), load)
	if m.events == 0 || m.events > changes {
		t.Errorf("%d changes made %d events", changes, m.events)
	}
}
