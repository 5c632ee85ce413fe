package kube

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/watchertest"
)

// testSuite uses a ServiceEntry for each object and ignores other kinds. PutAll holds
// changes back with the proxy.
func testSuite(t *testing.T, s *kubetest.Server) {
	watchertest.Run(t, func(t *testing.T) watchertest.Source {
		p, c := through(t, s)
		made := map[string]bool{}
		put := func(name, value string) {
			made[name] = true
			must(t, s.Apply(context.WithoutCancel(t.Context()), valued(name, value)))
		}
		remove := func(name string) {
			delete(made, name)
			must(t, s.Delete(context.WithoutCancel(t.Context()), serviceEntry(name)))
		}
		t.Cleanup(func() {
			for name := range made {
				remove(name)
			}
		})
		return watchertest.Source{
			Watcher: func() watcher.Watcher {
				w, err := New(Config{REST: c, Cluster: "east", Logger: slog.New(slog.DiscardHandler)})
				must(t, err)
				w.limits = quick()
				// PutAll holds the changes back for less than Down. When released, they
				// arrive without a pause as long as quiet, even on a busy machine.
				w.limits.Down, w.limits.quiet, w.limits.longest = 5*time.Second, 500*time.Millisecond, 10*time.Second
				return entriesOnly{w}
			},
			Put: put, Delete: remove,
			PutAll: func(values map[string]string) {
				p.Hang()
				for name, value := range values {
					put(name, value)
				}
				p.Resume()
			},
			Down: func() {
				p.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
					http.Error(w, "down", http.StatusServiceUnavailable)
					return true
				})
				p.Cut()
			},
			Up: func() { p.Intercept(nil) },
		}
	})
}

func valued(name, value string) string {
	return `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ` + name + `, namespace: shop}
spec: {hosts: [` + name + `-` + value + `.example.com], ports: [{number: 80, name: http}], resolution: DNS}
`
}

// entriesOnly drops objects of other kinds.
type entriesOnly struct{ watcher.Watcher }

func (w entriesOnly) Run(ctx context.Context, s watcher.Sink) error {
	return w.Watcher.Run(ctx, entrySink{s})
}

type entrySink struct{ watcher.Sink }

func other(o watcher.Object) bool { return o.Kind != "ServiceEntry" }

func (s entrySink) List(ctx context.Context, l watcher.Listing) error {
	l.Objects = slices.DeleteFunc(l.Objects, other)
	return s.Sink.List(ctx, l)
}

func (s entrySink) Change(ctx context.Context, set []watcher.Object) error {
	if set = slices.DeleteFunc(set, other); len(set) == 0 {
		return nil
	}
	return s.Sink.Change(ctx, set)
}

func (s entrySink) Problems(string, []problem.Diagnostic) {}
