package kube

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/index"
)

// This file starts and ends feeds.

// Kinds that this package treats specially; package index names others.
const (
	secretKind       = "Secret"
	configMapKind    = "ConfigMap"
	meshConfigKind   = "MeshConfig"
	meshNetworksKind = "MeshNetworks"
)

// isSettings reports whether objects of a kind are in the mesh's ConfigMap.
func isSettings(k *kind.Kind) bool { return k.Name == meshConfigKind || k.Name == meshNetworksKind }

// wants reports whether the configuration includes a kind.
func (c *Config) wants(k *kind.Kind) bool {
	switch {
	case k.Form == kind.Produced:
		return false
	case isSettings(k):
		return c.MeshConfigMap.Name != ""
	case k.Name == secretKind:
		return len(c.Secrets.Key) > 0
	case k.Name == configMapKind:
		return len(c.ConfigMaps) > 0
	}
	return true
}

// scopes returns the scopes of the feeds for a kind that is served as r.
func (c *Config) scopes(k *kind.Kind, r apiserver.Resource) []apiserver.Scope {
	var named []types.NamespacedName // the only objects to follow, if any
	switch {
	case isSettings(k):
		named = []types.NamespacedName{c.MeshConfigMap}
	case k.Name == configMapKind:
		named = c.ConfigMaps
	case k.Name == index.NamespaceKind:
		for _, n := range c.Namespaces {
			named = append(named, types.NamespacedName{Name: n})
		}
	}
	var out []apiserver.Scope
	for _, n := range named {
		out = append(out, apiserver.Scope{Resource: r, Namespace: n.Namespace, Object: n.Name})
	}
	s, namespaces := apiserver.Scope{Resource: r}, c.Namespaces
	if k.Name == secretKind {
		s.Fields = kubeconv.SecretFields
		namespaces = c.secretNamespaces()
		if c.SecretSelector != nil {
			s.Labels = c.SecretSelector.String()
		}
	}
	switch {
	case len(named) > 0:
	case r.Namespaced && len(namespaces) > 0:
		for _, s.Namespace = range namespaces {
			out = append(out, s)
		}
	default:
		out = append(out, s)
	}
	return out
}

func (c *Config) converter(k *kind.Kind, keep *kubeconv.Keeper) index.Converter {
	if isSettings(k) {
		return index.Settings(k)
	}
	return index.Objects(k, kubeconv.Converter{DomainSuffix: c.DomainSuffix, Revision: c.Revision, Secrets: c.Secrets}, keep)
}

// serve starts feeds for all kinds that are served and wanted, and freezes the
// feeds of kinds that are no longer served.
func (r *run) serve(ctx context.Context, s *apiserver.Served) {
	r.missing = nil
	for _, k := range kind.All() {
		if !r.cfg.wants(k) {
			continue
		}
		in := k.Name
		if isSettings(k) {
			in = configMapKind
		}
		if resource, ok := s.Resources[in]; ok {
			for _, scope := range r.cfg.scopes(k, resource) {
				r.follow(ctx, k, scope)
			}
		} else if !s.Broken[k.Group] {
			r.lose(k)
		}
		if r.feedsOf(k) == 0 {
			r.missing = append(r.missing, k)
		}
	}
}

// follow starts a feed for a scope of a kind unless a good one is running.
func (r *run) follow(ctx context.Context, k *kind.Kind, s apiserver.Scope) {
	f := r.newFeed(ctx, k, s, r.cfg.converter(k, r.keeper))
	d, known := r.defined[f.Definition()]
	old := r.feeds[f.Name()]
	switch {
	case known && d.Deleting:
		return
	case old != nil && old.Scope.Resource == s.Resource && old.Frozen == "":
		return
	case old != nil:
		old.End()
		f.Held.Store(r.index.Held(f.Source))
	default:
		f.Held.Store(r.held[f.Name()])
	}
	f.UID = d.UID
	r.feeds[f.Name()] = f
	r.start(ctx, f)
}

func (r *run) newFeed(ctx context.Context, k *kind.Kind, s apiserver.Scope, c index.Converter) *apiserver.Feed {
	name := s.Label(k)
	return r.client.NewFeed(k, s, apiserver.Options{
		Convert: c, Send: func(m apiserver.Message) { r.send(ctx, m) }, Limits: r.limits.Limits,
		Lists: r.cfg.Metrics.lists.WithLabelValues(name), Restarts: r.cfg.Metrics.restarts.WithLabelValues(name),
	})
}

// start runs a feed until f.End is called, or until the run ends.
func (r *run) start(ctx context.Context, f *apiserver.Feed) {
	ctx, f.End = context.WithCancel(ctx)
	r.running.Go(func() { f.Run(ctx) })
}

// freeze ends a feed and keeps its objects as they are.
func (r *run) freeze(f *apiserver.Feed, why string) {
	if f.Frozen != "" {
		return
	}
	r.cfg.Logger.Warn("freezing a resource; its objects stay as they are", "resource", f.Scope.String(), "reason", why)
	f.Frozen = why
	f.End()
}

// lose freezes the feeds of a kind that is no longer served. If the listing did not
// cover the kind, lose also removes the feeds.
func (r *run) lose(k *kind.Kind) {
	for name, f := range r.feeds {
		if f.Kind != k {
			continue
		}
		r.freeze(f, "the API server no longer serves it")
		if !r.covered[k.Name] {
			delete(r.feeds, name)
		}
	}
}
