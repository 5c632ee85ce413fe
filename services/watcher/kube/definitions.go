package kube

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/index"
)

// This file follows CustomResourceDefinitions and freezes the feeds of removed
// ones.

// ours reports whether a definition is in the group of one of our custom kinds.
func ours(name string) bool {
	_, group, _ := strings.Cut(name, ".")
	for _, k := range kind.All() {
		if apiserver.IsCustom(k) && k.Group == group {
			return true
		}
	}
	return false
}

// define applies a message of the feed of definitions.
func (r *run) define(m apiserver.Message) {
	news := m.What == apiserver.Replaced
	switch m.What {
	case apiserver.Replaced, apiserver.Put:
		if news {
			clear(r.defined)
		}
		for _, o := range m.Objects {
			news = r.defines(o) || news
		}
	case apiserver.Removed:
		delete(r.defined, m.Gone.Name)
		news = ours(m.Gone.Name)
	default:
		return
	}
	r.compare()
	if news {
		r.asking.again(m.At)
	}
}

// defines stores a definition and reports whether it is one of ours.
func (r *run) defines(o *index.Object) bool {
	if !ours(o.Name) {
		return false
	}
	r.defined[o.Name], _ = o.Body.(apiserver.Definition)
	return true
}

// compare freezes the feeds whose definition is gone, being removed or replaced.
func (r *run) compare() {
	for _, f := range r.feeds {
		if name := f.Definition(); name != "" {
			d, ok := r.defined[name]
			r.judge(f, d, ok)
		}
	}
}

// judge freezes a feed unless its definition d exists, stays, and is the one that
// the feed began with.
func (r *run) judge(f *apiserver.Feed, d apiserver.Definition, exists bool) {
	switch {
	case f.Frozen != "":
	case !exists:
		r.freeze(f, "its definition is gone")
	case d.Deleting:
		r.freeze(f, "its definition is being removed")
	case f.UID == "":
		f.UID = d.UID
	case f.UID != d.UID:
		r.freeze(f, "its definition was removed and created again")
		r.asking.again(time.Now())
	}
}

// definitionTimeout limits a request for definitions.
const definitionTimeout = 5 * time.Second

// lookAtDefinitions compares the definitions after all lists were read: objects
// that a list lacks because their definition is being removed must not count as
// deleted. Errors are reported by the feed of definitions.
func (r *run) lookAtDefinitions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	all, err := r.client.Definitions(ctx)
	if err != nil {
		return
	}
	maps.DeleteFunc(all, func(name string, _ apiserver.Definition) bool { return !ours(name) })
	r.defined = all
	r.compare()
}

// judgeLosses freezes the feeds that lose objects because their definition is
// being removed. Kubernetes first deletes all objects one by one, and the events
// do not tell the reason.
func (r *run) judgeLosses(ctx context.Context, messages []any) {
	for _, m := range messages {
		m, ok := m.(apiserver.Message)
		if !ok || m.Feed.Definition() == "" || m.Feed.Frozen != "" || r.feeds[m.Feed.Name()] != m.Feed {
			continue
		}
		loses := m.What == apiserver.Removed || m.What == apiserver.Replaced && len(r.index.Missing(m.Feed.Source, m.Objects)) > 0
		if loses && m.Feed.Checked.Before(m.At) {
			m.Feed.Checked = time.Now()
			r.judgeLoss(ctx, m.Feed)
		}
	}
}

func (r *run) judgeLoss(ctx context.Context, f *apiserver.Feed) {
	ctx, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	d, err := r.client.Definition(ctx, f.Definition())
	switch {
	case err == nil || apierrors.IsNotFound(err):
		r.judge(f, d, err == nil)
	case !apierrors.IsForbidden(err): // reported by the feed of definitions
		r.freeze(f, fmt.Sprintf("objects are gone, and its definition cannot be read: %v", err))
		r.asking.again(time.Now().Add(r.limits.rediscover))
	}
}

// asking schedules discovery.
type asking struct {
	at    time.Time // of the next discovery; zero if none is planned
	vain  int       // consecutive discoveries that did not suffice
	under bool      // a discovery is running
}

func (a *asking) again(at time.Time) {
	a.sooner(at)
	a.vain = 0
}

func (a *asking) sooner(at time.Time) {
	if a.at.IsZero() || at.Before(a.at) {
		a.at = at
	}
}

func (a *asking) due(now time.Time) bool { return !a.under && !a.at.IsZero() && !now.Before(a.at) }

// rediscover starts a discovery if one is due. If definitions cannot be watched,
// it is due periodically.
func (r *run) rediscover(ctx context.Context, now time.Time) {
	if !r.asking.under && r.definitions.Trouble(now) != apiserver.None {
		r.asking.sooner(now.Add(r.limits.poll))
	}
	if !r.asking.due(now) {
		return
	}
	r.asking.under, r.asking.at = true, time.Time{}
	r.running.Go(func() {
		s, err := r.discover(ctx)
		r.send(ctx, func() { r.rediscovered(ctx, s, err) })
	})
}

func (r *run) discover(ctx context.Context) (*apiserver.Served, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.Silence)
	defer cancel()
	return r.client.Discover(ctx)
}

// maxVain limits the growth of the pause between two discoveries.
const maxVain = 5

// rediscovered applies a discovery, and schedules another one if the API server
// does not serve all definitions yet.
func (r *run) rediscovered(ctx context.Context, served *apiserver.Served, err error) {
	r.asking.under = false
	again := err != nil
	if err == nil {
		r.serve(ctx, served)
		for name, d := range r.defined {
			again = again || !d.Deleting && !served.Names[name]
		}
		for group := range served.Broken {
			again = again || ours("x."+group)
		}
	}
	if !again {
		r.asking.vain = 0
		return
	}
	r.asking.sooner(time.Now().Add(r.limits.rediscover << min(r.asking.vain, maxVain)))
	r.asking.vain++
}
