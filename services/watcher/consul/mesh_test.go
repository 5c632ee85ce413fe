package consul_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/consul"
	"meshlog.dev/services/watcher/registry"
)

// settings are those of a watcher of agents.
func settings(addresses ...string) consul.Settings {
	return consul.Settings{Addresses: addresses, Datacenter: "dc1", Namespace: consul.DefaultNamespace}
}

func newStatus() *registry.Status {
	return registry.NewStatus(ident.Shard{Source: consul.Source, Instance: "dc1"})
}

// mesh runs a watcher as a publisher does, and has what the log would have.
type mesh struct {
	t      *testing.T
	status *registry.Status

	mu      sync.Mutex
	objects map[string]watcher.Object // by kind and name
	listed  int
	partial bool
	down    error // nil: the source can be read
	said    map[string][]problem.Diagnostic
	news    chan struct{} // closed when something changes
}

// watch runs a watcher until the test ends.
func watch(t *testing.T, s consul.Settings) *mesh {
	m := &mesh{t: t, status: newStatus(), objects: map[string]watcher.Object{}, said: map[string][]problem.Diagnostic{}, news: make(chan struct{})}
	w := consul.New(s, m.status)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			err := w.Run(ctx, m)
			m.change(func() { m.down = err })
			if err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(250 * time.Millisecond): // as a publisher pauses
				}
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

func (m *mesh) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.news)
	m.news = make(chan struct{})
}

func key(o watcher.Object) string { return o.Kind + " " + o.Name }

// List implements watcher.Sink.
func (m *mesh) List(_ context.Context, l watcher.Listing) error {
	m.change(func() {
		if !l.Partial {
			clear(m.objects)
		}
		for _, o := range l.Objects {
			m.objects[key(o)] = o
		}
		m.listed, m.partial, m.down = m.listed+1, l.Partial, nil
	})
	return nil
}

// Change implements watcher.Sink.
func (m *mesh) Change(_ context.Context, set []watcher.Object) error {
	m.change(func() {
		for _, o := range set {
			if o.Delete {
				delete(m.objects, key(o))
			} else {
				m.objects[key(o)] = o
			}
		}
	})
	return nil
}

// Problems implements watcher.Sink.
func (m *mesh) Problems(origin string, ds []problem.Diagnostic) {
	m.change(func() { m.said[origin] = ds })
}

// await waits until a condition holds, which is called with m locked, and returns how long
// that took.
func (m *mesh) await(what string, within time.Duration, is func() bool) time.Duration {
	m.t.Helper()
	began := time.Now()
	end := time.After(within)
	tick := time.NewTicker(200 * time.Millisecond) // the status changes without a call
	defer tick.Stop()
	for {
		m.mu.Lock()
		ok, news := is(), m.news
		state := fmt.Sprintf("%d objects, listed %d times, partial %t, down: %v, status %v", len(m.objects), m.listed, m.partial, m.down, m.status.Report())
		m.mu.Unlock()
		if ok {
			return time.Since(began)
		}
		select {
		case <-news:
		case <-tick.C:
		case <-end:
			m.t.Fatalf("not within %s: %s; there are %s", within, what, state)
		}
	}
}

// services returns how many services there are.
func (m *mesh) services() (n int) {
	for k := range m.objects {
		if strings.HasPrefix(k, "Service ") || strings.HasPrefix(k, "ServiceEntry ") {
			n++
		}
	}
	return n
}

// endpoints returns the endpoints of a service, as address:port health.
func (m *mesh) endpoints(service string) (all []string) {
	for k, o := range m.objects {
		if !strings.HasPrefix(k, "EndpointSlice "+service+"#") {
			continue
		}
		var e registryv1.Endpoints
		if err := proto.Unmarshal(o.Value.Bytes, &e); err != nil {
			m.t.Error(err)
		}
		for _, x := range e.GetEndpoints() {
			health := strings.ToLower(strings.TrimPrefix(x.GetHealth().String(), "HEALTH_"))
			all = append(all, fmt.Sprintf("%s:%d %s", x.GetAddresses()[0], x.GetPorts()[""], health))
		}
	}
	slices.Sort(all)
	return all
}

// says reports whether a problem contains a text.
func (m *mesh) says(text string) bool {
	for _, ds := range m.said {
		for _, d := range ds {
			if strings.Contains(d.Reason+" "+d.Advice+" "+d.Effect, text) {
				return true
			}
		}
	}
	return false
}
