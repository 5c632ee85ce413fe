package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/index"
)

// This file decides which kinds the watcher can list.

// needs returns the kinds that a kind is converted with. Without them its objects
// would change, so the watcher does not list the kind.
func (c *Config) needs(name string) []string {
	switch {
	case name == index.SliceKind && len(c.Namespaces) > 0:
		return []string{index.PodKind} // a Role cannot allow to read nodes
	case name == index.SliceKind:
		return []string{index.PodKind, index.NodeKind}
	case name == index.PodKind && len(c.Namespaces) == 0:
		return []string{index.NodeKind}
	}
	return nil
}

// needy are the kinds that have needs. A kind comes before the kinds that need it.
var needy = []string{index.PodKind, index.SliceKind}

// readable returns the kinds whose objects are all known. A kind that is not
// wanted counts as readable and empty.
func (r *run) readable() map[string]bool {
	is := map[string]bool{}
	for _, k := range kind.All() {
		is[k.Name] = !r.cfg.wants(k) || r.feedsOf(k) > 0
	}
	for _, f := range r.feeds {
		is[f.Kind.Name] = is[f.Kind.Name] && f.Synced && f.Frozen == ""
	}
	for _, name := range needy {
		for _, need := range r.cfg.needs(name) {
			is[name] = is[name] && is[need]
		}
	}
	if len(r.cfg.DiscoverySelectors) > 0 && !is[index.NamespaceKind] {
		for _, k := range kind.All() { // the selected namespaces are unknown
			is[k.Name] = is[k.Name] && !k.Namespaced
		}
	}
	maps.DeleteFunc(is, func(_ string, can bool) bool { return !can })
	return is
}

func (r *run) feedsOf(k *kind.Kind) (n int) {
	for _, f := range r.feeds {
		if f.Kind == k {
			n++
		}
	}
	return n
}

// nothing returns an error if no resource can be read.
func (r *run) nothing(now time.Time) error {
	why := errors.New("the API server serves none that can be watched")
	for _, name := range slices.Sorted(maps.Keys(r.feeds)) {
		f := r.feeds[name]
		if f.Synced && f.Frozen == "" {
			return nil
		}
		if d, ok := f.Problem(now); ok {
			why = fmt.Errorf("%s: %s; %s", d.Origin, d.Reason, d.Advice)
		}
	}
	return fmt.Errorf("no resource can be read: %w", why)
}

// useless reports whether the API server answers but is not usable: it says that
// it is not ready, and every resource has failed for some time.
func (r *run) useless(now time.Time) bool {
	return r.unready != nil && !slices.ContainsFunc(r.all(), func(f *apiserver.Feed) bool {
		return f.Frozen == "" && (f.Err == nil || now.Before(f.Since.Add(r.limits.Down)))
	})
}

// outdated reports whether a new listing would have other kinds than the last one:
// a kind has become readable, or a kind has become unreadable for good.
func (r *run) outdated(now time.Time) bool {
	if r.covered == nil {
		return false
	}
	for name := range r.readable() {
		if !r.covered[name] {
			return true
		}
	}
	for _, f := range r.feeds {
		switch f.Trouble(now) {
		case apiserver.Unserved, apiserver.Forbidden:
			if r.covered[f.Kind.Name] {
				return true
			}
		}
	}
	return false
}
