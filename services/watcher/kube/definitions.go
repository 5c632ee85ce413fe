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

// This file is about what becomes of feeds when definitions come and go.

// ours says that a definition is of a group that has kinds in the table.
func ours(name string) bool {
	_, group, _ := strings.Cut(name, ".")
	for _, k := range kind.All() {
		if apiserver.IsCustom(k) && k.Group == group {
			return true
		}
	}
	return false
}

// define takes in what is said of definitions.
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

// defines takes in a definition, and says whether it is one of ours.
func (r *run) defines(o *index.Object) bool {
	if !ours(o.Name) {
		return false
	}
	r.defined[o.Name], _ = o.Body.(apiserver.Definition)
	return true
}

// compare freezes the feeds whose definition is not what it was.
func (r *run) compare() {
	for _, f := range r.feeds {
		name := f.Definition()
		d, ok := r.defined[name]
		switch {
		case name == "":
		case !ok:
			r.freeze(f, "its definition is gone")
		case d.Deleting:
			r.freeze(f, "its definition is being removed")
		case f.UID == "":
			f.UID = d.UID
		case f.UID != d.UID:
			r.freeze(f, "its definition was removed, and is another one now")
		}
	}
}

// definitionTimeout is how long the API server may take to say what definitions
// there are.
const definitionTimeout = 5 * time.Second

// lookAtDefinitions compares after all lists were read: what a list lacks
// because its definition was about to go is not gone. What cannot be read has
// been reported.
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
// about to go: Kubernetes deletes all objects of it first, one by one, and does
// not say why.
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
	case apierrors.IsNotFound(err):
		r.freeze(f, "its definition is gone")
	case apierrors.IsForbidden(err): // it is reported
	case err != nil:
		r.freeze(f, fmt.Sprintf("objects of it are gone, and whether its definition is cannot be seen: %v", err))
		r.asking.again(time.Now().Add(r.limits.rediscover))
	case d.Deleting:
		r.freeze(f, "its definition is being removed")
	case f.UID != "" && f.UID != d.UID:
		r.freeze(f, "its definition was removed, and is another one now")
		r.asking.again(time.Now())
	}
}

// asking is about asking the API server what it serves.
type asking struct {
	at    time.Time // when to; zero: not by itself
	vain  int       // how often that was in vain
	under bool      // it is under way
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

// discovered is what the API server serves.
type discovered struct {
	served *apiserver.Served
	err    error
	at     time.Time
}

// rediscover asks the API server what it serves, if that is due: where
// definitions cannot be watched, from time to time.
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
		r.send(ctx, discovered{s, err, time.Now()})
	})
}

func (r *run) discover(ctx context.Context) (*apiserver.Served, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.Silence)
	defer cancel()
	return r.client.Discover(ctx)
}

// maxVain bounds the pause between two tries.
const maxVain = 5

// rediscovered takes in what the API server serves, and plans to ask again where
// it has yet to follow its definitions.
func (r *run) rediscovered(ctx context.Context, m discovered) {
	r.asking.under = false
	again := m.err != nil
	if m.err == nil {
		r.serve(ctx, m.served)
		for name, d := range r.defined {
			again = again || !d.Deleting && !m.served.Names[name]
		}
		for group := range m.served.Broken {
			again = again || ours("x."+group)
		}
	}
	if !again {
		r.asking.vain = 0
		return
	}
	r.asking.sooner(m.at.Add(r.limits.rediscover << min(r.asking.vain, maxVain)))
	r.asking.vain++
}
