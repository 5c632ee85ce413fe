package kube

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/kubeconv"
)

// This file is about what is watched: which feeds there are, and what becomes
// of them when definitions come and go.

// wants says whether objects of a kind are watched where they are served.
func (c *Config) wants(k *kind.Kind) bool {
	switch k.Name {
	case secretKind:
		return len(c.SecretKey) > 0
	case configMapKind:
		return len(c.ConfigMaps) > 0
	case meshConfigKind, meshNetworksKind:
		return c.MeshConfigMap.Name != ""
	}
	return true
}

// scopes are what is to be followed for a kind that is served as r.
func (c *Config) scopes(k *kind.Kind, r resource) []scope {
	one := func(n types.NamespacedName) scope {
		return scope{resource: r, namespace: n.Namespace, object: n.Name}
	}
	var out []scope
	switch {
	case k.Name == meshConfigKind || k.Name == meshNetworksKind:
		return []scope{one(c.MeshConfigMap)}
	case k.Name == configMapKind:
		for _, n := range c.ConfigMaps {
			out = append(out, one(n))
		}
		return out
	}
	if k.Name == namespaceKind {
		for _, n := range c.Namespaces {
			out = append(out, one(types.NamespacedName{Name: n}))
		}
		if len(out) > 0 {
			return out
		}
	}
	s := scope{resource: r}
	if k.Name == secretKind {
		s.fields = kubeconv.SecretFields
	}
	if !r.namespaced || len(c.Namespaces) == 0 {
		return []scope{s}
	}
	for _, s.namespace = range c.Namespaces {
		out = append(out, s)
	}
	return out
}

// serve has a feed for everything that is served and wanted.
func (r *run) serve(ctx context.Context, s *served) {
	r.missing = nil
	for _, k := range kind.All() {
		if !r.cfg.wants(k) {
			continue
		}
		in := k.Name
		if in == meshConfigKind || in == meshNetworksKind {
			in = configMapKind
		}
		res, ok := s.resources[in]
		if ok {
			for _, scope := range r.cfg.scopes(k, res) {
				r.follow(ctx, k, scope)
			}
			continue
		}
		if !s.broken[k.Group] {
			r.lose(k)
		}
		if r.feedsOf(k) == 0 {
			r.missing = append(r.missing, k)
		}
	}
}

// lose ends the feeds of a kind that is not served any more. Where it was spoken
// of they are frozen, until a listing does not.
func (r *run) lose(k *kind.Kind) {
	for name, f := range r.feeds {
		if f.kind != k {
			continue
		}
		r.freeze(f, "the API server does not serve it any more")
		if !r.covered[k.Name] {
			delete(r.feeds, name)
		}
	}
}

// follow has a feed for a scope of a kind.
func (r *run) follow(ctx context.Context, k *kind.Kind, s scope) {
	convert := objectsOf(k, r.cfg.converter(), r.keeper)
	if k.Name == meshConfigKind || k.Name == meshNetworksKind {
		convert = settingsOf(k)
	}
	f := r.newFeed(k, s, convert)
	d, known := r.defined[f.definition()]
	old := r.feeds[f.name()]
	switch {
	case known && d.deleting:
		return
	case old != nil && old.resource == s.resource && old.frozen == "":
		return
	case old != nil:
		old.cancel()
		f.held.Store(r.index.held[f.name()])
	default:
		f.held.Store(r.held[f.name()])
	}
	f.uid = d.uid
	r.feeds[f.name()] = f
	r.start(ctx, f)
}

func (r *run) newFeed(k *kind.Kind, s scope, c converter) *feed {
	return &feed{scope: s, kind: k, convert: c, reader: r.client.reader(s.resource.GroupVersionResource, s.namespace), metrics: r.cfg.Metrics, limits: r.limits}
}

// start runs a feed until it is cancelled, or the run ends.
func (r *run) start(ctx context.Context, f *feed) {
	f.arrived.Store(time.Now().UnixNano())
	f.send = func(m message) { r.send(ctx, m) }
	following, cancel := context.WithCancel(ctx)
	f.cancel = cancel
	r.running.Go(func() { f.run(following) })
}

// freeze believes nothing of a feed any more: what was told of it stays.
func (r *run) freeze(f *feed, why string) {
	if f.frozen == "" {
		r.cfg.Logger.Warn("nothing is believed of a resource any more; its objects stay", "resource", f.scope.String(), "reason", why)
		f.frozen = why
		f.cancel()
	}
}

// judgeLosses freezes the feeds that lose objects because their definition is
// about to go: Kubernetes deletes all objects of it first, one by one, and does
// not say why.
func (r *run) judgeLosses(ctx context.Context, messages []message) {
	for _, m := range messages {
		f := m.feed
		if f == nil || f.definition() == "" || f.frozen != "" || r.feeds[f.name()] != f {
			continue
		}
		if m.what != removed && (m.what != replaced || len(r.index.missing(f.name(), m.objects)) == 0) {
			continue
		}
		if f.checked.Before(m.at) {
			f.checked = time.Now()
			r.judgeLoss(ctx, f)
		}
	}
}

// definitionTimeout is how long the API server may take to say whether a
// definition is there.
const definitionTimeout = 5 * time.Second

func (r *run) judgeLoss(ctx context.Context, f *feed) {
	ctx, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	d, err := r.client.definition(ctx, f.definition())
	switch {
	case apierrors.IsNotFound(err):
		r.freeze(f, "its definition is gone")
	case apierrors.IsForbidden(err): // it is reported
	case err != nil:
		r.freeze(f, fmt.Sprintf("objects of it are gone, and whether its definition is cannot be seen: %v", err))
		r.askAgain(time.Now().Add(r.limits.rediscover))
	case d.deleting:
		r.freeze(f, "its definition is being removed")
	case f.uid != "" && f.uid != d.uid:
		r.freeze(f, "its definition was removed, and is another one now")
		r.askAgain(time.Now())
	}
}

// define takes in what is said of definitions.
func (r *run) define(m message) {
	switch m.what {
	case replaced:
		clear(r.defined)
		fallthrough
	case put:
		for _, o := range m.objects {
			if ours(o.name) {
				r.defined[o.name] = o.body.(definition)
			}
		}
	case removed:
		delete(r.defined, m.gone.name)
	default:
		return
	}
	r.compare()
	if m.what == replaced || counts(m) {
		r.askAgain(m.at)
	}
}

// compare freezes the feeds whose definition is not what it was.
func (r *run) compare() {
	for _, f := range r.feeds {
		name := f.definition()
		d, ok := r.defined[name]
		switch {
		case name == "":
		case !ok:
			r.freeze(f, "its definition is gone")
		case d.deleting:
			r.freeze(f, "its definition is being removed")
		case f.uid == "":
			f.uid = d.uid
		case f.uid != d.uid:
			r.freeze(f, "its definition was removed, and is another one now")
		}
	}
}

// lookAtDefinitions compares after all lists were read: what a list lacks
// because its definition was about to go is not gone. What cannot be read has
// been reported.
func (r *run) lookAtDefinitions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, definitionTimeout)
	defer cancel()
	all, err := r.client.definitions(ctx)
	if err != nil {
		return
	}
	maps.DeleteFunc(all, func(name string, _ definition) bool { return !ours(name) })
	r.defined = all
	r.compare()
}

// counts says that a message is about a definition of ours.
func counts(m message) bool {
	if m.what == removed {
		return ours(m.gone.name)
	}
	return len(m.objects) > 0 && ours(m.objects[0].name)
}

// ours says that a definition is of a group that has kinds in the table.
func ours(name string) bool {
	_, group, _ := strings.Cut(name, ".")
	return customGroups[group]
}

// askAgain has the API server asked for what it serves, at some time.
func (r *run) askAgain(at time.Time) {
	if r.discoverAt.IsZero() || at.Before(r.discoverAt) {
		r.discoverAt = at
	}
	r.attempts = 0
}

// rediscover asks the API server what it serves, if that is due.
func (r *run) rediscover(ctx context.Context, now time.Time) {
	if r.discovering || r.discoverAt.IsZero() || now.Before(r.discoverAt) {
		return
	}
	r.discovering, r.discoverAt = true, time.Time{}
	r.running.Go(func() {
		s, err := r.discover(ctx)
		r.send(ctx, message{what: discovered, served: s, err: err, at: time.Now()})
	})
}

func (r *run) discover(ctx context.Context) (*served, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.silence)
	defer cancel()
	return r.client.discover(ctx)
}

// maxAttempts bounds the pause between two tries.
const maxAttempts = 5

// rediscovered takes in what the API server serves, and plans to ask again where
// it has yet to follow its definitions.
func (r *run) rediscovered(ctx context.Context, m message) {
	r.discovering = false
	again := m.err != nil
	if m.err == nil {
		r.serve(ctx, m.served)
		for name, d := range r.defined {
			again = again || !d.deleting && !m.served.names[name]
		}
		for group := range m.served.broken {
			again = again || customGroups[group]
		}
	}
	pause := r.limits.poll
	switch {
	case again:
		pause = r.limits.rediscover << min(r.attempts, maxAttempts)
		r.attempts++
	case r.definitions.trouble(m.at) == none:
		r.attempts = 0
		return
	}
	if at := m.at.Add(pause); r.discoverAt.IsZero() || at.Before(r.discoverAt) {
		r.discoverAt = at
	}
}
