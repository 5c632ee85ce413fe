package kubernetes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

func TestKubernetes(t *testing.T) {
	w := start(t)
	for _, test := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"endpoints of both clusters are served", w.bothServed},
		{"objects are changed, deleted and created again", w.changed},
		{"pods come and go under load", w.scaled},
		{"changes while a watcher is dead", w.watcherDead},
		{"changes while an API server is dead", w.serverRestarted},
		{"an API server, its watcher, and another's watcher die", w.die},
		{"one process with a cluster and a directory", w.oneProcess},
		{"a definition is deleted", w.definitionGone},
		{"many objects are applied at once", w.applied},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			test.run(ctx, t)
			w.nothingRejected(ctx, t)
		})
		if t.Failed() {
			break // a later test would fail because of this one
		}
	}
}

func (w *world) bothServed(ctx context.Context, t *testing.T) {
	w.known(ctx, t, w.v1, true)
	w.known(ctx, t, w.far, true)
	w.asked(ctx, t, w.v1, w.v2, w.far)
}

func (w *world) changed(ctx context.Context, t *testing.T) {
	w.weigh(ctx, t, 50, 50)
	w.share(ctx, t, "v2", 50)

	// Without a route Envoy answers 404. With the route it serves as before.
	before := w.serving(ctx, t)
	must(t, w.shop.DeleteRoutes(ctx, w.east))
	w.acked(ctx, t, rig.RouteConfiguration, before)
	for _, e := range w.shop.Edges {
		if tally := rig.Send(ctx, e.URL(), 20); tally.Statuses[404] != 20 {
			t.Errorf("%s answers without a route: %+v", e.App, tally)
		}
	}
	w.weigh(ctx, t, 0, 100)
	w.share(ctx, t, "v2", 100)
	w.weigh(ctx, t, 50, 50)
}

func (w *world) scaled(ctx context.Context, t *testing.T) {
	w.during(ctx, t, func() {
		// Pods and slices in the order in which a Deployment that scales to four
		// and back to one has them: a pod runs before it is ready, and answers
		// until after its slice marks it terminating.
		var more []*cluster.Pod
		for range 3 {
			p, err := w.east.Begin(ctx, cluster.Namespace, cluster.Service, "v2")
			must(t, err)
			more = append(more, p)
		}
		for _, p := range more {
			must(t, p.Ready(ctx, true))
		}
		for _, p := range more {
			w.known(ctx, t, p, true)
		}
		w.asked(ctx, t, append(more, w.v2)...)
		// One of them becomes unready, then ready again.
		must(t, more[0].Ready(ctx, false))
		w.known(ctx, t, more[0], false)
		must(t, more[0].Ready(ctx, true))
		w.known(ctx, t, more[0], true)

		for _, p := range more {
			must(t, p.Terminate(ctx))
		}
		for _, p := range more {
			w.known(ctx, t, p, false)
			served := p.Served()
			w.settle(ctx, t)
			if now := p.Served(); now != served {
				t.Errorf("%s terminates, and got %d requests", p.Name, now-served)
			}
			must(t, p.Remove(ctx))
		}
	})
}

// watcherDead kills a watcher while requests flow. Changes made meanwhile, including
// deletions, arrive when it is back, and not before.
func (w *world) watcherDead(ctx context.Context, t *testing.T) {
	watcher := w.mesh.Kube[eastern][0]
	w.during(ctx, t, func() {
		second := run(ctx, t, w.east, "v2")
		w.known(ctx, t, second, true)
		before := w.objects(ctx, t)
		watcher.Kill()
		must(t, second.Terminate(ctx))
		third := run(ctx, t, w.east, "v2")
		w.asked(ctx, t, w.v1, w.v2, w.far)
		if diff := cmp.Diff(before, w.objects(ctx, t)); diff != "" {
			t.Errorf("objects while the watcher is dead (-before +now):\n%s", diff)
		}
		must(t, watcher.Restart())
		w.known(ctx, t, third, true)
		w.known(ctx, t, second, false)
		must(t, second.Remove(ctx), third.Terminate(ctx))
		w.known(ctx, t, third, false)
		must(t, third.Remove(ctx))
	})
}

// serverRestarted restarts an API server, with its etcd, and its watcher too.
func (w *world) serverRestarted(ctx context.Context, t *testing.T) {
	w.during(ctx, t, func() {
		must(t, w.east.Restart(ctx))
		p := run(ctx, t, w.east, "v2")
		w.known(ctx, t, p, true)
		w.mesh.Kube[eastern][0].Kill()
		must(t, p.Terminate(ctx))
		must(t, w.east.Restart(ctx), w.mesh.Kube[eastern][0].Restart())
		w.known(ctx, t, p, false)
		w.remove(ctx, t, p)
		w.asked(ctx, t, w.v1, w.v2, w.far)
	})
}

// die kills, under one load, the API server of the east, then its watcher too,
// and the active watcher of the west, whose standby takes over. No request may
// fail.
func (w *world) die(ctx context.Context, t *testing.T) {
	before := w.serving(ctx, t)
	w.during(ctx, t, func() {
		t.Run("both", func(t *testing.T) { // ends when both have ended
			for name, dies := range map[string]func(context.Context, *testing.T){"east": w.eastDies, "west": w.westDies} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					dies(ctx, t)
				})
			}
		})
		w.same(ctx, t, before)
	})
}

func (w *world) eastDies(ctx context.Context, t *testing.T) {
	before, err := w.source(ctx, w.east)
	must(t, err)
	watcher := w.mesh.Kube[eastern][0]
	w.east.API.Kill()
	w.untilSource(ctx, t, w.east, "down", down)
	watcher.Kill()
	must(t, watcher.Restart())
	now := w.untilSource(ctx, t, w.east, "down, reported by a watcher that never reached it", func(s source) bool {
		return down(s) && s.Holder == watcher.Name
	})
	if now.Objects != before.Objects {
		t.Errorf("%d objects of the east are left of %d", now.Objects, before.Objects)
	}
	w.asked(ctx, t, w.v1, w.v2, w.far)
	must(t, w.east.API.Start(ctx))
	// The API server serves the definitions some time after it starts.
	w.untilSource(ctx, t, w.east, "following, with all objects", func(s source) bool {
		return following(s) && s.Objects == before.Objects
	})
}

// takeover is the longest time between a watcher's last record and its twin
// becoming active.
const takeover = 30 * time.Second

func (w *world) westDies(ctx context.Context, t *testing.T) {
	first, twin := w.mesh.Kube[western][0], w.mesh.Kube[western][1]
	w.untilSource(ctx, t, w.west, "followed by "+first.Name, func(s source) bool {
		return following(s) && s.Holder == first.Name && len(s.Standbys) == 1
	})
	first.Kill()
	at := time.Now()
	p := run(ctx, t, w.west, "v1")
	w.known(ctx, t, p, true)
	took := time.Since(at)
	t.Logf("the twin became active %s after the first was killed", took.Round(100*time.Millisecond))
	if took > takeover+5*time.Second {
		t.Errorf("a change in the west took %s, want %s and a few seconds", took, takeover)
	}
	w.untilSource(ctx, t, w.west, "followed by "+twin.Name, func(s source) bool { return following(s) && s.Holder == twin.Name })
	must(t, p.Terminate(ctx))
	w.known(ctx, t, p, false)
	w.remove(ctx, t, p)
	must(t, first.Restart())
	w.untilSource(ctx, t, w.west, "followed by "+twin.Name+", with a twin", func(s source) bool {
		return following(s) && s.Holder == twin.Name && len(s.Standbys) == 1
	})
}

// definitionGone deletes a definition, and with it all its objects: meshlog keeps
// them.
func (w *world) definitionGone(ctx context.Context, t *testing.T) {
	const definition = "virtualservices.networking.istio.io"
	w.during(ctx, t, func() {
		before := w.objects(ctx, t)
		must(t, w.east.RemoveCRD(ctx, definition))
		w.untilSource(ctx, t, w.east, "frozen for VirtualServices", func(s source) bool {
			return len(s.FrozenKinds) == 1 && s.FrozenKinds[0].Kind == "VirtualService"
		})
		must(t, program.Until(ctx, "the builder to count the frozen kinds", func(ctx context.Context) error {
			metrics, err := w.mesh.Builders[0].Metrics(ctx)
			if n := metrics["meshlog_builder_frozen_kinds"].Sum; err == nil && n != 1 {
				err = fmt.Errorf("%v kinds are", n)
			}
			return err
		}))
		p := run(ctx, t, w.east, "v2") // all other changes take effect
		w.known(ctx, t, p, true)
		must(t, p.Terminate(ctx))
		w.known(ctx, t, p, false)
		must(t, p.Remove(ctx))
		must(t, program.Until(ctx, "only the pod to be removed", func(ctx context.Context) error {
			s, err := w.source(ctx, w.east)
			n := s.Objects
			for _, k := range s.FrozenKinds {
				n += k.Objects
			}
			if err == nil && n != before[w.east.Name] {
				err = fmt.Errorf("%d objects, there were %d", n, before[w.east.Name])
			}
			return err
		}))
	})
	// The definition is back, and the objects are written again: they take
	// effect.
	must(t, w.east.InstallIstioCRDs(ctx, definition))
	w.weigh(ctx, t, 0, 100)
	w.share(ctx, t, "v2", 100)
}
